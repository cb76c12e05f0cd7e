//! The functions of Triton that the backend calls.
//!
//! # Safety
//! All of them trust their pointers: the backend got these from the server, or made them on its own
//! stack. A fuzzer under an address sanitizer finds where it did not.
#![allow(missing_docs, clippy::missing_safety_doc)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::model::{Input, Instance, Model, Output, Request, Response};

pub type Handle = c_void;

/// A counter or gauge of the metrics page.
pub struct Metric {
    /// Whether it never falls.
    is_counter: bool,
    /// Sum of the increments.
    value: Mutex<f64>,
}

/// Highest value of any gauge so far.
pub static HIGHEST: Mutex<f64> = Mutex::new(0.0);

static COUNTER: i32 = 0;
static GAUGE: i32 = 1;

/// An error of the server or the backend.
pub struct Failure {
    pub code: i32,
    pub text: CString,
}

/// Version of the backend API that the server claims: major, and minor.
pub static API: Mutex<(u32, u32)> = Mutex::new((1, 19));

const NOT_FOUND: i32 = 2;
const FINAL: u32 = 1;

fn failure(code: i32, text: &str) -> *mut Failure {
    let text = CString::new(text).unwrap_or_default();
    Box::into_raw(Box::new(Failure { code, text }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorNew(code: i32, text: *const c_char) -> *mut Failure {
    let text = unsafe { CStr::from_ptr(text) }.to_owned();
    Box::into_raw(Box::new(Failure { code, text }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorDelete(failure: *mut Failure) {
    drop(unsafe { Box::from_raw(failure) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorMessage(failure: *mut Failure) -> *const c_char {
    unsafe { (*failure).text.as_ptr() }
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_LogMessage(
    _level: i32,
    _file: *const c_char,
    _line: i32,
    _text: *const c_char,
) -> *mut Failure {
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MessageSerializeToJson(
    message: *mut CString,
    base: *mut *const c_char,
    size: *mut usize,
) -> *mut Failure {
    unsafe {
        *base = (*message).as_ptr();
        *size = (*message).as_bytes().len();
    }
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MessageDelete(message: *mut CString) -> *mut Failure {
    drop(unsafe { Box::from_raw(message) });
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterNew(
    _name: *const c_char,
    kind: i32,
    value: *const c_void,
) -> *mut CString {
    assert_eq!(kind, 0, "a label is a text");
    Box::into_raw(Box::new(unsafe { CStr::from_ptr(value.cast()) }.to_owned()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterDelete(parameter: *mut CString) {
    drop(unsafe { Box::from_raw(parameter) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricFamilyNew(
    family: *mut *const i32,
    kind: i32,
    name: *const c_char,
    description: *const c_char,
) -> *mut Failure {
    assert!([name, description].iter().all(|text| !unsafe { CStr::from_ptr(*text) }.is_empty()));
    // The backend never deletes a family, of which only the kind is needed.
    unsafe { *family = if kind == COUNTER { &COUNTER } else { &GAUGE } };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricNew(
    metric: *mut *mut Metric,
    family: *const i32,
    labels: *const *const CString,
    count: u64,
) -> *mut Failure {
    assert!(!family.is_null());
    let labels = unsafe { std::slice::from_raw_parts(labels, count as usize) };
    assert!(labels.iter().all(|label| !unsafe { &**label }.is_empty()));
    let is_counter = unsafe { *family } == COUNTER;
    unsafe { *metric = Box::into_raw(Box::new(Metric { is_counter, value: Mutex::new(0.0) })) };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricDelete(metric: *mut Metric) -> *mut Failure {
    let metric = unsafe { Box::from_raw(metric) };
    let left = *metric.value.lock().expect("not poisoned");
    assert!(metric.is_counter || left == 0.0, "requests of an unloaded model wait");
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricIncrement(
    metric: *mut Metric,
    value: f64,
) -> *mut Failure {
    let metric = unsafe { &*metric };
    assert!(value.is_finite() && (value >= 0.0 || !metric.is_counter), "a counter does not fall");
    let mut sum = metric.value.lock().expect("not poisoned");
    *sum += value;
    assert!(*sum >= 0.0, "fewer than no requests wait");
    if !metric.is_counter {
        let mut highest = HIGHEST.lock().expect("not poisoned");
        *highest = highest.max(*sum);
    }
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelName(
    _model: *mut Model,
    name: *mut *const c_char,
) -> *mut Failure {
    unsafe { *name = c"tokenizer".as_ptr() };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ApiVersion(
    major: *mut u32,
    minor: *mut u32,
) -> *mut Failure {
    unsafe { (*major, *minor) = *API.lock().expect("not poisoned") };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelConfig(
    model: *mut Model,
    _version: u32,
    message: *mut *mut CString,
) -> *mut Failure {
    unsafe { *message = Box::into_raw(Box::new((*model).config.clone())) };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelRepository(
    model: *mut Model,
    artifact: *mut i32,
    location: *mut *const c_char,
) -> *mut Failure {
    unsafe {
        *artifact = 0;
        *location = (*model).folder.as_ptr();
    }
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelVersion(
    _model: *mut Model,
    version: *mut u64,
) -> *mut Failure {
    unsafe { *version = 1 };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelState(
    model: *mut Model,
    state: *mut *mut c_void,
) -> *mut Failure {
    unsafe { *state = (*model).state };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelSetState(
    model: *mut Model,
    state: *mut c_void,
) -> *mut Failure {
    unsafe { (*model).state = state };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceModel(
    instance: *mut Instance,
    model: *mut *mut Model,
) -> *mut Failure {
    unsafe { *model = (*instance).model };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceState(
    instance: *mut Instance,
    state: *mut *mut c_void,
) -> *mut Failure {
    unsafe { *state = (*instance).state };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceSetState(
    instance: *mut Instance,
    state: *mut c_void,
) -> *mut Failure {
    unsafe { (*instance).state = state };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceReportStatistics(
    _instance: *mut Instance,
    request: *mut Request,
    success: bool,
    start: u64,
    compute_start: u64,
    compute_end: u64,
    end: u64,
) -> *mut Failure {
    let request = unsafe { &*request };
    assert!(!request.released, "statistics after the release");
    assert_eq!(success, matches!(request.answer, Some(Ok(_))));
    assert!(start <= compute_start && compute_start <= compute_end && compute_end <= end);
    null_mut()
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONBACKEND_ModelInstanceReportBatchStatistics(
    _instance: *mut Instance,
    batch: u64,
    _start: u64,
    _compute_start: u64,
    _compute_end: u64,
    _end: u64,
) -> *mut Failure {
    assert!(batch > 0);
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestIsCancelled(
    request: *mut Request,
    cancelled: *mut bool,
) -> *mut Failure {
    unsafe { *cancelled = (*request).cancelled };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestInput(
    request: *mut Request,
    name: *const c_char,
    input: *mut *mut Input,
) -> *mut Failure {
    let (request, name) = unsafe { (&mut *request, CStr::from_ptr(name)) };
    let Some(found) = request.inputs.iter_mut().find(|input| input.name.as_c_str() == name) else {
        return failure(NOT_FOUND, "no such input");
    };
    unsafe { *input = found };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestOutputCount(
    request: *mut Request,
    count: *mut u32,
) -> *mut Failure {
    unsafe { *count = (*request).outputs.len() as u32 };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestOutputName(
    request: *mut Request,
    index: u32,
    name: *mut *const c_char,
) -> *mut Failure {
    unsafe { *name = (&(*request).outputs)[index as usize].as_ptr() };
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestRelease(
    request: *mut Request,
    _flags: u32,
) -> *mut Failure {
    let request = unsafe { &mut *request };
    assert!(request.answer.is_some(), "a request is released before its response");
    assert!(!request.released, "a request is released twice");
    request.released = true;
    // The server reuses the memory: a later read is a use after free.
    request.inputs.clear();
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_InputProperties(
    input: *mut Input,
    name: *mut *const c_char,
    data_type: *mut i32,
    shape: *mut *const i64,
    rank: *mut u32,
    bytes: *mut u64,
    buffers: *mut u32,
) -> *mut Failure {
    unsafe {
        let input = &*input;
        if !name.is_null() {
            *name = input.name.as_ptr();
        }
        *data_type = input.data_type;
        *shape = input.shape.as_ptr();
        *rank = input.shape.len() as u32;
        *bytes = input.buffers.iter().map(|buffer| buffer.len() as u64).sum();
        *buffers = input.buffers.len() as u32;
    }
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_InputBuffer(
    input: *mut Input,
    index: u32,
    buffer: *mut *const c_void,
    bytes: *mut u64,
    memory: *mut i32,
    memory_id: *mut i64,
) -> *mut Failure {
    unsafe {
        let found = &(&(*input).buffers)[index as usize];
        *buffer = found.as_ptr().cast();
        *bytes = found.len() as u64;
        *memory = 0;
        *memory_id = 0;
    }
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseNew(
    response: *mut *mut Response,
    request: *mut Request,
) -> *mut Failure {
    unsafe {
        assert!(!(*request).released, "a response to a released request");
        if let Some(gate) = &(*request).gate {
            gate.wait();
            gate.wait();
        }
        *response = Box::into_raw(Box::new(Response { request, outputs: Vec::new() }));
    }
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseOutput(
    response: *mut Response,
    output: *mut *mut Output,
    name: *const c_char,
    data_type: i32,
    shape: *const i64,
    rank: u32,
) -> *mut Failure {
    unsafe {
        let shape = std::slice::from_raw_parts(shape, rank as usize).to_vec();
        let name = CStr::from_ptr(name).to_owned();
        let made = Box::new(Output { name, data_type, shape, content: Box::default() });
        let outputs = &mut (*response).outputs;
        outputs.push(made);
        // Moving the box would invalidate a pointer that was made before.
        *output = outputs.last_mut().map_or(null_mut(), |made| &raw mut **made);
    }
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_OutputBuffer(
    output: *mut Output,
    buffer: *mut *mut c_void,
    bytes: u64,
    memory: *mut i32,
    memory_id: *mut i64,
) -> *mut Failure {
    unsafe {
        (*output).content = vec![0xAA; bytes as usize].into_boxed_slice();
        *buffer = (*output).content.as_mut_ptr().cast();
        *memory = 0;
        *memory_id = 0;
    }
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseSend(
    response: *mut Response,
    flags: u32,
    failure: *mut Failure,
) -> *mut Failure {
    assert_eq!(flags & FINAL, FINAL);
    let response = unsafe { Box::from_raw(response) };
    let request = unsafe { &mut *response.request };
    assert!(request.answer.is_none(), "two responses to one request");
    request.answer = Some(match unsafe { failure.as_ref() } {
        Some(failure) => Err((failure.code, failure.text.clone())),
        None => Ok(response.outputs),
    });
    null_mut()
}
