//! One request of Triton: its input buffers, and the response to it.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::slice;

use crate::batch::{Blame, Refusal};
use crate::encoder::{Columns, Pads};
use crate::ffi::*;
use crate::layout::{Span, shape, size, write};
use crate::settings::{Integer, Settings};
use crate::texts::MOST_BYTES;

/// Turns an error of Triton into its text.
pub fn checked(error: Error) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: Triton returned the error, which owns its text.
    unsafe {
        let text = CStr::from_ptr(TRITONSERVER_ErrorMessage(error)).to_string_lossy().into_owned();
        TRITONSERVER_ErrorDelete(error);
        Err(text)
    }
}

/// Returns an error for Triton.
pub fn error(code: i32, message: &str) -> Error {
    let text = c_string(message);
    // SAFETY: Triton copies the text.
    unsafe { TRITONSERVER_ErrorNew(code, text.as_ptr()) }
}

/// Returns a text for C; NUL characters become U+FFFD.
pub fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Returns whether the client no longer waits for the answer.
///
/// # Safety
/// `request` is a request that is not released.
pub unsafe fn is_cancelled(request: *mut Handle) -> Result<bool, String> {
    let mut cancelled = false;
    // SAFETY: the pointer is valid for the call, and `request` is the caller's promise.
    unsafe { checked(TRITONBACKEND_RequestIsCancelled(request, &mut cancelled)) }?;
    Ok(cancelled)
}

/// Content of one input tensor.
pub struct InputContent<'a> {
    /// Shape, the batch axis included.
    pub shape: &'a [i64],
    /// Bytes of all its buffers.
    pub bytes: Cow<'a, [u8]>,
}

/// Returns an input of a request.
///
/// # Safety
/// `request` is a request that is not released while the content is in use.
pub unsafe fn input_of<'a>(request: *mut Handle, name: &CStr) -> Result<InputContent<'a>, Refusal> {
    let shown = name.to_string_lossy();
    let (mut input, mut shape) = (null_mut(), null());
    let (mut data_type, mut rank, mut total, mut buffers) = (0, 0, 0, 0);
    // SAFETY: the pointers are valid for the call, and `request` is the caller's promise.
    let found = unsafe { checked(TRITONBACKEND_RequestInput(request, name.as_ptr(), &mut input)) };
    found.map_err(|_| {
        Refusal::client(format!("input {shown} is missing; add that input to the request"))
    })?;
    // SAFETY: `input` belongs to the request.
    unsafe {
        checked(TRITONBACKEND_InputProperties(
            input,
            null_mut(),
            &mut data_type,
            &mut shape,
            &mut rank,
            &mut total,
            &mut buffers,
        ))
    }
    .map_err(Refusal::tokenizer)?;
    if data_type != TYPE_BYTES {
        return Err(Refusal::client(format!("{shown} has no texts: send it with data type BYTES")));
    }
    if total > MOST_BYTES as u64 {
        return Err(Refusal::client(format!(
            "{shown} has {total} bytes, more than the {MOST_BYTES} allowed; send fewer or shorter texts"
        )));
    }
    let shape = match rank {
        0 => &[][..],
        // SAFETY: Triton's shape has `rank` dimensions and lives as long as the request.
        _ => unsafe { slice::from_raw_parts(shape, rank as usize) },
    };
    let mut bytes = Cow::Borrowed(&[][..]);
    for index in 0..buffers {
        // SAFETY: `input` belongs to the request and has that many buffers.
        let part = unsafe { buffer_of(input, index, &shown) }?;
        if index == 0 {
            bytes = Cow::Borrowed(part);
        } else {
            bytes.to_mut().extend_from_slice(part);
        }
    }
    Ok(InputContent { shape, bytes })
}

/// # Safety
/// `input` has a buffer `index` and belongs to a request that is not released while it is in use.
unsafe fn buffer_of<'a>(input: *mut Handle, index: u32, name: &str) -> Result<&'a [u8], Refusal> {
    let (mut buffer, mut size, mut memory, mut memory_id) = (null(), 0, MEMORY_CPU, 0);
    // SAFETY: the pointers are valid for the call.
    unsafe {
        checked(TRITONBACKEND_InputBuffer(
            input,
            index,
            &mut buffer,
            &mut size,
            &mut memory,
            &mut memory_id,
        ))
    }
    .map_err(Refusal::tokenizer)?;
    if memory == MEMORY_GPU {
        return Err(Refusal::client(format!("{name} is in GPU memory: send texts in host memory")));
    }
    if buffer.is_null() || size == 0 {
        return Ok(&[]);
    }
    // SAFETY: Triton's buffer has `size` bytes in host memory and lives as long as the request.
    Ok(unsafe { slice::from_raw_parts(buffer.cast(), usize::try_from(size).unwrap_or(0)) })
}

/// Returns for each output of the settings whether the request wants it.
///
/// # Safety
/// `request` is a request that is not released.
pub unsafe fn requested(request: *mut Handle, settings: &Settings) -> Result<Vec<bool>, String> {
    let mut wanted = vec![false; settings.outputs.len()];
    let mut count = 0;
    // SAFETY: the pointers are valid for the calls; names live as long as the request.
    unsafe {
        checked(TRITONBACKEND_RequestOutputCount(request, &mut count))?;
        for index in 0..count {
            let mut name = null();
            checked(TRITONBACKEND_RequestOutputName(request, index, &mut name))?;
            let name = CStr::from_ptr(name).to_bytes();
            for (output, wanted) in settings.outputs.iter().zip(&mut wanted) {
                *wanted |= output.name.as_bytes() == name;
            }
        }
    }
    Ok(wanted)
}

/// A response that is sent exactly once, with an error if nothing else was sent.
pub struct Response(*mut Handle);

impl Response {
    /// Returns the response to a request.
    ///
    /// # Safety
    /// `request` is a request that is not released while the response is in use.
    pub unsafe fn new(request: *mut Handle) -> Result<Self, String> {
        let mut response = null_mut();
        // SAFETY: the pointer is valid for the call.
        unsafe { checked(TRITONBACKEND_ResponseNew(&mut response, request))? };
        Ok(Self(response))
    }

    /// Adds the outputs that are wanted.
    pub fn add(
        &mut self,
        settings: &Settings,
        wanted: &[bool],
        columns: &Columns,
        (span, width): (Span, usize),
        pads: Pads,
    ) -> Result<(), String> {
        let outputs = settings.outputs.iter().zip(wanted).filter(|(_, wanted)| **wanted);
        for (output, _) in outputs {
            let bytes = size(output, span.rows, width).ok_or("an output is too large")?;
            let (dims, rank) = shape(output.kind, span.rows, width);
            let data_type = match output.integer {
                Integer::Int32 => TYPE_INT32,
                Integer::Int64 => TYPE_INT64,
            };
            let buffer = self.buffer(&output.name, data_type, &dims[..rank], bytes)?;
            write(output, columns, span, width, pads, buffer);
        }
        Ok(())
    }

    fn buffer(
        &mut self,
        name: &str,
        data_type: i32,
        dims: &[i64],
        bytes: usize,
    ) -> Result<&mut [u8], String> {
        let text = c_string(name);
        let (mut output, mut buffer): (*mut Handle, *mut c_void) = (null_mut(), null_mut());
        let (mut memory, mut memory_id) = (MEMORY_CPU, 0);
        // SAFETY: the pointers are valid for the calls, and Triton copies name and shape.
        unsafe {
            checked(TRITONBACKEND_ResponseOutput(
                self.0,
                &mut output,
                text.as_ptr(),
                data_type,
                dims.as_ptr(),
                dims.len() as u32,
            ))?;
            checked(TRITONBACKEND_OutputBuffer(
                output,
                &mut buffer,
                bytes as u64,
                &mut memory,
                &mut memory_id,
            ))?;
        }
        if memory == MEMORY_GPU {
            return Err(format!("{name} was requested in GPU memory: request it in host memory"));
        }
        if buffer.is_null() || bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: Triton gave `bytes` bytes in host memory that nothing else uses until the send.
        // They are written, never read.
        Ok(unsafe { slice::from_raw_parts_mut(buffer.cast(), bytes) })
    }

    /// Sends the response; `refusal` makes it an error.
    pub fn send(mut self, refusal: Option<&Refusal>) {
        let sent = refusal.map_or(null_mut(), |refusal| {
            let code = match refusal.blame {
                Blame::Client => ERROR_INVALID_ARG,
                Blame::Tokenizer => ERROR_INTERNAL,
                Blame::Cancelled => ERROR_CANCELLED,
            };
            error(code, &refusal.message)
        });
        self.finish(sent);
    }

    fn finish(&mut self, sent: Error) {
        let response = std::mem::replace(&mut self.0, null_mut());
        // SAFETY: the response was not sent before; the send takes it over, but not the error.
        unsafe {
            let _ = checked(TRITONBACKEND_ResponseSend(response, RESPONSE_FINAL, sent));
            if !sent.is_null() {
                TRITONSERVER_ErrorDelete(sent);
            }
        }
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        if !self.0.is_null() {
            self.finish(error(ERROR_INTERNAL, "the tokenizer failed on this request"));
        }
    }
}
