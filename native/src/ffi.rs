//! The part of Triton's C API that the backend calls, API version 1.
//!
//! The symbols stay undefined in the library: the server that loads it provides them.

use std::ffi::{c_char, c_void};

/// `TRITONSERVER_Error` and the other objects that only Triton knows.
pub type Handle = c_void;
/// `TRITONSERVER_Error*`; null for success.
pub type Error = *mut Handle;

pub const ERROR_INTERNAL: i32 = 1;
pub const ERROR_INVALID_ARG: i32 = 3;
pub const ERROR_UNSUPPORTED: i32 = 5;
pub const ERROR_CANCELLED: i32 = 7;
pub const LOG_INFO: i32 = 0;
pub const LOG_ERROR: i32 = 2;
pub const MEMORY_GPU: i32 = 2;
pub const MEMORY_CPU: i32 = 0;
pub const RELEASE_ALL: u32 = 1;
pub const RESPONSE_FINAL: u32 = 1;
pub const TYPE_INT32: i32 = 8;
pub const TYPE_INT64: i32 = 9;
pub const TYPE_BYTES: i32 = 13;
/// `TRITONSERVER_PARAMETER_STRING`.
pub const STRING: i32 = 0;
/// `TRITONSERVER_METRIC_KIND_COUNTER`.
pub const COUNTER: i32 = 0;
/// `TRITONSERVER_METRIC_KIND_GAUGE`.
pub const GAUGE: i32 = 1;

unsafe extern "C" {
    pub fn TRITONSERVER_ErrorNew(code: i32, text: *const c_char) -> Error;
    pub fn TRITONSERVER_ErrorDelete(error: Error);
    pub fn TRITONSERVER_ErrorMessage(error: Error) -> *const c_char;
    pub fn TRITONSERVER_LogMessage(
        level: i32,
        file: *const c_char,
        line: i32,
        text: *const c_char,
    ) -> Error;
    pub fn TRITONSERVER_MessageSerializeToJson(
        message: *mut Handle,
        base: *mut *const c_char,
        size: *mut usize,
    ) -> Error;
    pub fn TRITONSERVER_MessageDelete(message: *mut Handle) -> Error;
    pub fn TRITONSERVER_ParameterNew(
        name: *const c_char,
        kind: i32,
        value: *const c_void,
    ) -> *mut Handle;
    pub fn TRITONSERVER_ParameterDelete(parameter: *mut Handle);
    pub fn TRITONSERVER_MetricFamilyNew(
        family: *mut *mut Handle,
        kind: i32,
        name: *const c_char,
        description: *const c_char,
    ) -> Error;
    pub fn TRITONSERVER_MetricNew(
        metric: *mut *mut Handle,
        family: *mut Handle,
        labels: *const *mut Handle,
        count: u64,
    ) -> Error;
    pub fn TRITONSERVER_MetricDelete(metric: *mut Handle) -> Error;
    pub fn TRITONSERVER_MetricIncrement(metric: *mut Handle, value: f64) -> Error;

    pub fn TRITONBACKEND_ApiVersion(major: *mut u32, minor: *mut u32) -> Error;
    pub fn TRITONBACKEND_ModelConfig(
        model: *mut Handle,
        version: u32,
        message: *mut *mut Handle,
    ) -> Error;
    pub fn TRITONBACKEND_ModelRepository(
        model: *mut Handle,
        artifact: *mut i32,
        location: *mut *const c_char,
    ) -> Error;
    pub fn TRITONBACKEND_ModelName(model: *mut Handle, name: *mut *const c_char) -> Error;
    pub fn TRITONBACKEND_ModelVersion(model: *mut Handle, version: *mut u64) -> Error;
    pub fn TRITONBACKEND_ModelState(model: *mut Handle, state: *mut *mut c_void) -> Error;
    pub fn TRITONBACKEND_ModelSetState(model: *mut Handle, state: *mut c_void) -> Error;
    pub fn TRITONBACKEND_ModelInstanceModel(
        instance: *mut Handle,
        model: *mut *mut Handle,
    ) -> Error;
    pub fn TRITONBACKEND_ModelInstanceState(
        instance: *mut Handle,
        state: *mut *mut c_void,
    ) -> Error;
    pub fn TRITONBACKEND_ModelInstanceSetState(instance: *mut Handle, state: *mut c_void) -> Error;
    pub fn TRITONBACKEND_ModelInstanceReportStatistics(
        instance: *mut Handle,
        request: *mut Handle,
        success: bool,
        start: u64,
        compute_start: u64,
        compute_end: u64,
        end: u64,
    ) -> Error;
    pub fn TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance: *mut Handle,
        batch: u64,
        start: u64,
        compute_start: u64,
        compute_end: u64,
        end: u64,
    ) -> Error;
    pub fn TRITONBACKEND_RequestIsCancelled(request: *mut Handle, cancelled: *mut bool) -> Error;
    pub fn TRITONBACKEND_RequestInput(
        request: *mut Handle,
        name: *const c_char,
        input: *mut *mut Handle,
    ) -> Error;
    pub fn TRITONBACKEND_RequestOutputCount(request: *mut Handle, count: *mut u32) -> Error;
    pub fn TRITONBACKEND_RequestOutputName(
        request: *mut Handle,
        index: u32,
        name: *mut *const c_char,
    ) -> Error;
    pub fn TRITONBACKEND_RequestRelease(request: *mut Handle, flags: u32) -> Error;
    pub fn TRITONBACKEND_InputProperties(
        input: *mut Handle,
        name: *mut *const c_char,
        data_type: *mut i32,
        shape: *mut *const i64,
        rank: *mut u32,
        bytes: *mut u64,
        buffers: *mut u32,
    ) -> Error;
    pub fn TRITONBACKEND_InputBuffer(
        input: *mut Handle,
        index: u32,
        buffer: *mut *const c_void,
        bytes: *mut u64,
        memory: *mut i32,
        memory_id: *mut i64,
    ) -> Error;
    pub fn TRITONBACKEND_ResponseNew(response: *mut *mut Handle, request: *mut Handle) -> Error;
    pub fn TRITONBACKEND_ResponseOutput(
        response: *mut Handle,
        output: *mut *mut Handle,
        name: *const c_char,
        data_type: i32,
        shape: *const i64,
        rank: u32,
    ) -> Error;
    pub fn TRITONBACKEND_OutputBuffer(
        output: *mut Handle,
        buffer: *mut *mut c_void,
        bytes: u64,
        memory: *mut i32,
        memory_id: *mut i64,
    ) -> Error;
    pub fn TRITONBACKEND_ResponseSend(response: *mut Handle, flags: u32, error: Error) -> Error;
}
