//! The tokenizer step of a pipeline, as a backend of Triton.
//!
//! It reads its settings from the configuration of the model. Everything up to [`batch`] knows
//! nothing of Triton and is unit-tested; [`backend`] binds it to Triton's C API, whose symbols the
//! server provides when it loads the library.

pub mod batch;
pub mod checks;
pub mod encoder;
pub mod layout;
pub mod pairs;
pub mod regex_limits;
pub mod row_limit;
pub mod settings;
pub mod start;
pub mod texts;
pub mod words;

// A test binary has no server that would provide these symbols.
#[cfg(not(test))]
mod backend;
#[cfg(not(test))]
mod ffi;
#[cfg(not(test))]
mod metrics;
#[cfg(not(test))]
mod request;
