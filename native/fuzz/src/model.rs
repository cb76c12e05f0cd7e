//! A loaded model with its instances, and the requests that it answers.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Barrier};
use std::thread;

use crate::api::{Failure, Handle};

// Every type here is only passed around by pointer.
#[allow(improper_ctypes)]
unsafe extern "C" {
    fn TRITONBACKEND_Initialize(backend: *mut Handle) -> *mut Failure;
    fn TRITONBACKEND_ModelInitialize(model: *mut Model) -> *mut Failure;
    fn TRITONBACKEND_ModelFinalize(model: *mut Model) -> *mut Failure;
    fn TRITONBACKEND_ModelInstanceInitialize(instance: *mut Instance) -> *mut Failure;
    fn TRITONBACKEND_ModelInstanceFinalize(instance: *mut Instance) -> *mut Failure;
    fn TRITONBACKEND_ModelInstanceExecute(
        instance: *mut Instance,
        requests: *mut *mut Request,
        count: u32,
    ) -> *mut Failure;
}

/// A model: what the backend reads of it, and its state.
pub struct Model {
    /// The configuration in JSON.
    pub config: CString,
    /// The model's folder; its version is 1.
    pub folder: CString,
    /// State of the backend.
    pub state: *mut c_void,
}

/// An instance of a model.
pub struct Instance {
    /// Its model.
    pub model: *mut Model,
    /// State of the backend.
    pub state: *mut c_void,
}

/// An input tensor; each buffer has a memory block of exactly its size.
pub struct Input {
    /// Name.
    pub name: CString,
    /// Data type as a number of Triton's C API.
    pub data_type: i32,
    /// Shape, the batch axis included.
    pub shape: Vec<i64>,
    /// Content.
    pub buffers: Vec<Box<[u8]>>,
}

/// An output tensor.
pub struct Output {
    /// Name.
    pub name: CString,
    /// Data type as a number of Triton's C API.
    pub data_type: i32,
    /// Shape, the batch axis included.
    pub shape: Vec<i64>,
    /// Content.
    pub content: Box<[u8]>,
}

/// A response before it is sent.
pub struct Response {
    /// Its request.
    pub request: *mut Request,
    /// Outputs.
    pub outputs: Vec<Box<Output>>,
}

/// What the client gets.
pub type Answer = Result<Vec<Box<Output>>, (i32, CString)>;

/// A request with its answer.
pub struct Request {
    /// Inputs.
    pub inputs: Vec<Input>,
    /// Names of the outputs that the client asks for.
    pub outputs: Vec<CString>,
    /// Whether the client no longer waits for the answer.
    pub cancelled: bool,
    /// Where its response waits twice before it is made.
    pub gate: Option<Arc<Barrier>>,
    /// The answer that was sent.
    pub answer: Option<Answer>,
    /// Whether the backend released the request.
    pub released: bool,
}

/// A batch of requests, owned by the test server.
struct Given(Vec<*mut Request>);

impl Given {
    fn new(requests: Vec<Request>) -> Self {
        Self(requests.into_iter().map(|request| Box::into_raw(Box::new(request))).collect())
    }

    /// Has an instance execute the batch.
    ///
    /// # Safety
    /// The instance is initialized and executes nothing else.
    unsafe fn execute(&self, instance: *mut Instance) {
        let mut given = self.0.clone();
        // SAFETY: the requests outlive the batch; the backend copies the list.
        let done = unsafe {
            let count = given.len() as u32;
            taken(TRITONBACKEND_ModelInstanceExecute(instance, given.as_mut_ptr(), count))
        };
        done.expect("the backend owns the requests, so the call succeeds");
    }

    /// Returns the answers to requests that the backend has released.
    fn answers(self) -> Vec<Answer> {
        self.0
            .into_iter()
            .map(|pointer| {
                // SAFETY: made by `Box::into_raw`, and released by the backend.
                let request = unsafe { Box::from_raw(pointer) };
                assert!(request.released, "a request was not released");
                request.answer.expect("a request got no response")
            })
            .collect()
    }
}

/// What a thread executes, as on a server.
struct Work(*mut Instance, Given);

// SAFETY: a server calls the backend from threads of its own.
unsafe impl Send for Work {}

impl Work {
    /// # Safety
    /// As [`Given::execute`].
    unsafe fn execute(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.1.execute(self.0) };
        self
    }
}

/// A model that is ready for requests.
pub struct Loaded {
    model: Box<Model>,
    instance: Box<Instance>,
}

impl Loaded {
    /// Loads the model in `folder`.
    ///
    /// # Errors
    /// The message of the backend.
    pub fn new(config: CString, folder: CString) -> Result<Self, String> {
        let mut model = Box::new(Model { config, folder, state: null_mut() });
        // SAFETY: the backend calls back into `api` with these pointers, which outlive the calls.
        unsafe {
            taken(TRITONBACKEND_Initialize(null_mut()))?;
            taken(TRITONBACKEND_ModelInitialize(&mut *model))?;
            let mut instance = Box::new(Instance { model: &mut *model, state: null_mut() });
            taken(TRITONBACKEND_ModelInstanceInitialize(&mut *instance))?;
            Ok(Self { model, instance })
        }
    }

    /// Answers a batch of requests.
    pub fn execute(&mut self, requests: Vec<Request>) -> Vec<Answer> {
        let given = Given::new(requests);
        // SAFETY: the instance is initialized, and only this call uses it.
        unsafe { given.execute(&mut *self.instance) };
        given.answers()
    }

    /// Answers a batch with a new instance while another batch is executed. The other batch has a
    /// request with `gate`. The new instance is removed before that request is answered.
    pub fn execute_with_new(
        &mut self,
        other: Vec<Request>,
        gate: &Barrier,
        batch: Vec<Request>,
    ) -> (Vec<Answer>, Vec<Answer>) {
        let other = Work(&mut *self.instance, Given::new(other));
        let mut instance = Box::new(Instance { model: &mut *self.model, state: null_mut() });
        thread::scope(|scope| {
            // SAFETY: nothing else uses the instance until the thread ends.
            let running = scope.spawn(|| unsafe { other.execute() });
            gate.wait();
            let given = Given::new(batch);
            // SAFETY: the model is loaded, and only these calls use the instance.
            unsafe {
                taken(TRITONBACKEND_ModelInstanceInitialize(&mut *instance)).expect("a new one");
                given.execute(&mut *instance);
                taken(TRITONBACKEND_ModelInstanceFinalize(&mut *instance)).expect("removal");
            }
            let answers = given.answers();
            gate.wait();
            (running.join().expect("no panic").1.answers(), answers)
        })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: nothing executes any more.
        unsafe {
            taken(TRITONBACKEND_ModelInstanceFinalize(&mut *self.instance)).expect("unload");
            taken(TRITONBACKEND_ModelFinalize(&mut *self.model)).expect("unload");
        }
    }
}

/// # Safety
/// `failure` is null, or an error that nothing else uses.
unsafe fn taken(failure: *mut Failure) -> Result<(), String> {
    if failure.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let failure = unsafe { Box::from_raw(failure) };
    Err(failure.text.to_string_lossy().into_owned())
}
