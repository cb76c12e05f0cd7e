//! A server of one model: Triton's C API as far as the native tokenizer calls it.
//!
//! It links the backend, so that tests and fuzzers can run it without Triton, with many requests
//! per second and with every fault that a client can cause. It aborts where the backend breaks
//! Triton's rules: a response is sent once, and a request is released once, after its response.

pub mod api;
pub mod fixtures;
pub mod model;
pub mod wire;

// Links the backend, whose functions `model` declares.
#[cfg(feature = "backend")]
use triton_tritonpipe_tokenizer as _;
