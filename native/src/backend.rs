//! The functions that Triton calls: load, unload and execute.

use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::slice;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::batch::{Answer, Batch, Refusal, caught};
use crate::encoder::{Encoder, panic_message};
use crate::ffi::*;
use crate::layout::Span;
use crate::metrics::{Counters, Work, clock};
use crate::regex_limits;
use crate::request::{Response, c_string, checked, error, input_of, is_cancelled, requested};
use crate::settings::Settings;
use crate::start::{Attempt, Executors, Passed, Start};
use crate::texts::Input;

/// Version 1.19 is that of the oldest servers that the operator supports.
const API: (u32, u32) = (1, 19);

/// A loaded model; its instances share it.
struct Model {
    settings: Settings,
    names: Vec<CString>,
    encoder: Encoder,
    counters: Counters,
    passed: Passed<Requests>,
}

impl Model {
    /// Passes a batch on. Triton counts its requests as pending no longer, so the model does.
    fn pass(&self, requests: Requests, executors: &Executors) -> Attempt<Requests> {
        self.passed.pass(requests, executors, |passed| self.counters.passed(passed.0.len()))
    }

    /// Returns the next passed batch for an instance.
    fn next(&self, executors: &Executors) -> Option<Requests> {
        self.counted(self.passed.next(executors))
    }

    /// Returns the next passed batch for the helper thread of an instance.
    fn next_of_helper(&self, executors: &Executors) -> Option<Requests> {
        self.counted(self.passed.next_of_helper(executors))
    }

    fn counted(&self, taken: Option<Requests>) -> Option<Requests> {
        taken.inspect(|requests| self.counters.executed(requests.0.len()))
    }
}

/// Requests of a batch, which belong to the backend.
struct Requests(Vec<*mut Handle>);

// SAFETY: Triton's functions for requests may be called by any thread, one at a time.
unsafe impl Send for Requests {}

/// An instance of Triton.
struct InstanceHandle(*mut Handle);

// SAFETY: Triton's functions for statistics may be called by several threads at once.
unsafe impl Send for InstanceHandle {}

/// An instance, used by one thread at a time.
struct Instance {
    model: Arc<Model>,
    batch: Batch,
    start: Start,
    executors: Arc<Executors>,
    helper: Option<JoinHandle<()>>,
}

impl Instance {
    /// Starts a thread that executes passed batches. If that fails, the other instances do so.
    fn start_helper(&mut self, instance: *mut Handle) {
        self.join_helper();
        let (model, handle) = (Arc::clone(&self.model), InstanceHandle(instance));
        let executors = Arc::clone(&self.executors);
        let started = thread::Builder::new().name("tokenizer".into()).spawn(move || {
            let handle = handle;
            // As on a thread of Triton, a panic ends the server: requests would get no answer.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let mut batch = Batch::new(&model.encoder);
                while let Some(requests) = model.next_of_helper(&executors) {
                    execute(handle.0, &model, &mut batch, &requests);
                }
            }))
            .map_err(|_| std::process::abort());
        });
        match started {
            Ok(thread) => self.helper = Some(thread),
            Err(_) => self.executors.helper_failed(),
        }
    }

    /// Waits for the thread, which uses the library and the instance until it ends.
    fn join_helper(&mut self) {
        if let Some(thread) = self.helper.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.join_helper();
    }
}

/// Runs a function that Triton called; a failure or panic becomes an error for Triton.
fn guarded(work: impl FnOnce() -> Result<(), String>) -> Error {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => null_mut(),
        Ok(Err(message)) => error(ERROR_INVALID_ARG, &message),
        Err(panic) => error(ERROR_INTERNAL, &panic_message(panic.as_ref())),
    }
}

fn log(level: i32, text: &str) {
    let text = c_string(text);
    // SAFETY: Triton copies the texts.
    let _ =
        unsafe { checked(TRITONSERVER_LogMessage(level, c"tokenizer".as_ptr(), 0, text.as_ptr())) };
}

/// Checks the server's API; called once when the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn TRITONBACKEND_Initialize(_backend: *mut Handle) -> Error {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the pointers are valid for the call.
    let asked = guarded(|| unsafe { checked(TRITONBACKEND_ApiVersion(&mut major, &mut minor)) });
    if !asked.is_null() {
        return asked;
    }
    if major != API.0 || minor < API.1 {
        let message = format!(
            "the built-in tokenizer needs backend API {}.{} or a later {}.x, this server has \
             {major}.{minor}: use another server image",
            API.0, API.1, API.0
        );
        return error(ERROR_UNSUPPORTED, &message);
    }
    // The text of a panic goes to the client of the request; clients must not fill the log.
    std::panic::set_hook(Box::new(|_| {}));
    regex_limits::set();
    // Threads of a pool would outlive the model.
    tokenizers::utils::parallelism::set_parallelism(false);
    null_mut()
}

/// Loads a model.
///
/// # Safety
/// `model` is a model of Triton.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInitialize(model: *mut Handle) -> Error {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (config, folder) = unsafe { (config_of(model)?, folder_of(model)?) };
        let settings = Settings::parse(&config)?;
        let encoder = Encoder::load(&folder, &settings)?;
        let cache = if encoder.memory().is_some() { "enabled" } else { "not possible" };
        log(LOG_INFO, &format!("built-in tokenizer {}: word cache {cache}", folder.display()));
        let names = settings.names.iter().map(|name| c_string(name)).collect();
        // SAFETY: the caller's promise.
        let counters = unsafe { counters_of(model)? };
        let passed = Passed::default();
        let loaded = Box::new(Arc::new(Model { settings, names, encoder, counters, passed }));
        // SAFETY: Triton keeps the state until TRITONBACKEND_ModelFinalize.
        unsafe { checked(TRITONBACKEND_ModelSetState(model, Box::into_raw(loaded).cast())) }
    })
}

/// Unloads a model, after its instances.
///
/// # Safety
/// `model` is a model of Triton that nothing uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelFinalize(model: *mut Handle) -> Error {
    guarded(|| {
        let mut state = null_mut();
        // SAFETY: the state is null, or was set by TRITONBACKEND_ModelInitialize.
        unsafe {
            checked(TRITONBACKEND_ModelState(model, &mut state))?;
            free::<Arc<Model>>(state);
        }
        Ok(())
    })
}

/// Creates an instance.
///
/// # Safety
/// `instance` is an instance of Triton whose model is loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceInitialize(instance: *mut Handle) -> Error {
    guarded(|| {
        let (mut model, mut state) = (null_mut(), null_mut());
        // SAFETY: the model's state was set by TRITONBACKEND_ModelInitialize.
        let model = unsafe {
            checked(TRITONBACKEND_ModelInstanceModel(instance, &mut model))?;
            checked(TRITONBACKEND_ModelState(model, &mut state))?;
            state.cast::<Arc<Model>>().as_ref()
        };
        let model = Arc::clone(model.ok_or("the model is not loaded")?);
        let batch = Batch::new(&model.encoder);
        let (start, executors) = (Start::new(Instant::now()), Arc::default());
        let created = Instance { model, batch, start, executors, helper: None };
        let created = Box::into_raw(Box::new(created));
        // SAFETY: Triton keeps the state until TRITONBACKEND_ModelInstanceFinalize.
        unsafe { checked(TRITONBACKEND_ModelInstanceSetState(instance, created.cast())) }
    })
}

/// Removes an instance.
///
/// # Safety
/// `instance` is an instance of Triton that executes nothing any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceFinalize(instance: *mut Handle) -> Error {
    guarded(|| {
        let mut state = null_mut();
        // SAFETY: the state is null, or was set by TRITONBACKEND_ModelInstanceInitialize.
        unsafe {
            checked(TRITONBACKEND_ModelInstanceState(instance, &mut state))?;
            free::<Instance>(state);
        }
        Ok(())
    })
}

/// Answers a batch of requests; the requests belong to the backend then.
///
/// # Safety
/// `instance` is an instance that executes nothing else, `requests` are `count` requests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceExecute(
    instance: *mut Handle,
    requests: *mut *mut Handle,
    count: u32,
) -> Error {
    let mut state: *mut c_void = null_mut();
    // SAFETY: the caller's promise; the state was set by TRITONBACKEND_ModelInstanceInitialize.
    let (state, requests) = unsafe {
        if let Err(message) = checked(TRITONBACKEND_ModelInstanceState(instance, &mut state)) {
            return error(ERROR_INTERNAL, &message);
        }
        (state.cast::<Instance>().as_mut(), slice::from_raw_parts(requests, count as usize))
    };
    let Some(state) = state else {
        return error(ERROR_INTERNAL, "the instance is not initialized");
    };
    // From here on every request is answered and released, so this call succeeds.
    let model = Arc::clone(&state.model);
    let requests = Requests(requests.to_vec());
    let passes = model.settings.prefetches && state.start.passes(Instant::now());
    let attempt = match passes {
        true => model.pass(requests, &state.executors),
        false => Attempt::Kept(requests),
    };
    let mut next = match attempt {
        Attempt::Kept(requests) => Some(requests),
        Attempt::Passed => return null_mut(),
        Attempt::PassedWithoutHelper => {
            state.start_helper(instance);
            return null_mut();
        }
    };
    model.passed.begin(&state.executors);
    while let Some(requests) = next {
        execute(instance, &model, &mut state.batch, &requests);
        next = model.next(&state.executors);
    }
    state.start.executed(Instant::now());
    null_mut()
}

/// Answers and releases the requests of a batch.
fn execute(handle: *mut Handle, model: &Model, batch: &mut Batch, requests: &Requests) {
    let begin = Work::now();
    answer(handle, model, batch, &requests.0);
    model.counters.add(begin);
}

fn answer(handle: *mut Handle, model: &Model, batch: &mut Batch, requests: &[*mut Handle]) {
    let start = now();
    batch.clear();
    let spans = requests.iter().map(|request| tokenize(model, batch, *request));
    let spans: Vec<Result<Span, Refusal>> = spans.collect();
    let rows: usize = spans.iter().map(|span| span.as_ref().map_or(1, |span| span.rows)).sum();
    let answers = batch.answers(&model.settings, spans);
    let computed = now();
    let answered: Vec<bool> = requests
        .iter()
        .zip(answers)
        .map(|(request, answer)| respond(model, batch, *request, answer))
        .collect();
    let end = now();
    for (request, success) in requests.iter().zip(answered) {
        // SAFETY: the request was answered and is not released yet; nothing uses it afterwards.
        let released = unsafe {
            let _ = checked(TRITONBACKEND_ModelInstanceReportStatistics(
                handle, *request, success, start, start, computed, end,
            ));
            checked(TRITONBACKEND_RequestRelease(*request, RELEASE_ALL))
        };
        if let Err(message) = released {
            log(LOG_ERROR, &format!("built-in tokenizer: a request was not released: {message}"));
        }
    }
    let size = if model.settings.batched { rows } else { requests.len() };
    // SAFETY: the instance is the one that executes.
    let _ = unsafe {
        checked(TRITONBACKEND_ModelInstanceReportBatchStatistics(
            handle,
            size as u64,
            start,
            start,
            computed,
            end,
        ))
    };
}

/// Tokenizes the texts of one request.
fn tokenize(model: &Model, batch: &mut Batch, request: *mut Handle) -> Result<Span, Refusal> {
    caught(|| {
        // Triton looks for cancelled requests only before it forms a batch, and a passed batch may
        // have waited since. A cached error would be given to others.
        let proceed = || {
            // SAFETY: the request is released after its batch.
            let cancelled = || unsafe { is_cancelled(request) }.map_err(Refusal::tokenizer);
            let ends = !model.settings.caches && cancelled()?;
            if ends { Err(Refusal::cancelled()) } else { Ok(()) }
        };
        let mut contents = Vec::with_capacity(2);
        for name in &model.names {
            // SAFETY: the request is released after its batch.
            contents.push(unsafe { input_of(request, name) }?);
        }
        let inputs: Vec<Input<'_>> = model
            .settings
            .names
            .iter()
            .zip(&contents)
            .map(|(name, content)| Input { name, shape: content.shape, bytes: &content.bytes })
            .collect();
        batch.add(&model.settings, &model.encoder, &inputs, proceed)
    })
}

/// Sends the answer to one request; returns whether it is one.
fn respond(model: &Model, batch: &Batch, request: *mut Handle, answer: Answer) -> bool {
    let attempt = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the request is released after its batch.
        let mut response = unsafe { Response::new(request) }?;
        let written = answer.and_then(|rows| {
            // SAFETY: as above.
            unsafe { requested(request, &model.settings) }
                .and_then(|wanted| {
                    let pads = model.encoder.pads;
                    response.add(&model.settings, &wanted, &batch.columns, rows, pads)
                })
                .map_err(Refusal::tokenizer)
        });
        response.send(written.as_ref().err());
        Ok::<bool, String>(written.is_ok())
    }));
    match attempt {
        Ok(Ok(success)) => success,
        Ok(Err(message)) => {
            log(LOG_ERROR, &format!("built-in tokenizer: a request got no response: {message}"));
            false
        }
        Err(_) => false,
    }
}

/// Returns the clock of Triton's statistics in nanoseconds.
fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// # Safety
/// `state` is null, or came from `Box::<T>::into_raw` and is used no more.
unsafe fn free<T>(state: *mut c_void) {
    if !state.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(state.cast::<T>()) });
    }
}

/// # Safety
/// `model` is a model of Triton.
unsafe fn config_of(model: *mut Handle) -> Result<String, String> {
    let (mut message, mut base, mut size) = (null_mut(), null(), 0);
    // SAFETY: the pointers are valid for the calls; the text is copied before its message goes.
    unsafe {
        checked(TRITONBACKEND_ModelConfig(model, 1, &mut message))?;
        let read = checked(TRITONSERVER_MessageSerializeToJson(message, &mut base, &mut size));
        let text = read.map(|()| slice::from_raw_parts(base.cast::<u8>(), size).to_vec());
        checked(TRITONSERVER_MessageDelete(message))?;
        String::from_utf8(text?).map_err(|error| error.to_string())
    }
}

/// # Safety
/// `model` is a model of Triton.
unsafe fn folder_of(model: *mut Handle) -> Result<PathBuf, String> {
    let (mut artifact, mut location, mut version): (i32, *const c_char, u64) = (0, null(), 0);
    // SAFETY: the pointers are valid for the calls; the path lives as long as the model.
    unsafe {
        checked(TRITONBACKEND_ModelRepository(model, &mut artifact, &mut location))?;
        checked(TRITONBACKEND_ModelVersion(model, &mut version))?;
        let path = CStr::from_ptr(location).to_string_lossy();
        Ok(PathBuf::from(path.as_ref()).join(version.to_string()))
    }
}

/// # Safety
/// `model` is a model of Triton.
unsafe fn counters_of(model: *mut Handle) -> Result<Counters, String> {
    let (mut name, mut version): (*const c_char, u64) = (null(), 0);
    // SAFETY: the pointers are valid for the calls; the name lives as long as the model.
    unsafe {
        checked(TRITONBACKEND_ModelName(model, &mut name))?;
        checked(TRITONBACKEND_ModelVersion(model, &mut version))?;
        Counters::new(CStr::from_ptr(name), version)
    }
}
