//! The test server for a Python process: models and batches as flat bytes through a C interface.
//!
//! All numbers are little-endian. A text or block of bytes follows its length (8 bytes).

use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

use crate::api::API;
use crate::model::{Answer, Input, Loaded, Request};

/// Bytes for the caller, who returns them to [`testserver_free`].
#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let bytes = Box::leak(bytes.into_boxed_slice());
        Self { data: bytes.as_mut_ptr(), size: bytes.len() }
    }
}

/// Reads this module's format.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns a reader of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Returns whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, size: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(size);
        self.0 = rest;
        front
    }

    /// Returns the next number.
    pub fn number(&mut self) -> i64 {
        i64::from_le_bytes(self.take(8).try_into().expect("8 bytes"))
    }

    /// Returns the next block of bytes.
    pub fn bytes(&mut self) -> &'a [u8] {
        let size = self.number() as usize;
        self.take(size)
    }

    /// Returns the next text.
    pub fn text(&mut self) -> CString {
        CString::new(self.bytes()).expect("no NUL")
    }

    /// Returns the next items, which follow their number.
    pub fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.number()).map(|_| item(self)).collect()
    }

    fn request(&mut self) -> Request {
        let inputs = self.list(|reader| Input {
            name: reader.text(),
            data_type: reader.number() as i32,
            shape: reader.list(Self::number),
            buffers: reader.list(|reader| reader.bytes().into()),
        });
        let outputs = self.list(Self::text);
        Request { inputs, outputs, answer: None, cancelled: false, gate: None, released: false }
    }
}

fn put(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend((content.len() as i64).to_le_bytes());
    bytes.extend_from_slice(content);
}

fn put_answer(bytes: &mut Vec<u8>, answer: &Answer) {
    match answer {
        Err((code, message)) => {
            bytes.extend(i64::from(*code).to_le_bytes());
            put(bytes, message.as_bytes());
        }
        Ok(outputs) => {
            bytes.extend((-1i64).to_le_bytes());
            bytes.extend((outputs.len() as i64).to_le_bytes());
            for output in outputs {
                put(bytes, output.name.as_bytes());
                bytes.extend(i64::from(output.data_type).to_le_bytes());
                bytes.extend((output.shape.len() as i64).to_le_bytes());
                output.shape.iter().for_each(|axis| bytes.extend(axis.to_le_bytes()));
                put(bytes, &output.content);
            }
        }
    }
}

/// Answers a batch of requests, both in this module's format.
pub fn execute(loaded: &mut Loaded, requests: &[u8]) -> Vec<u8> {
    let requests = Reader::new(requests).list(Reader::request);
    let mut bytes = Vec::new();
    loaded.execute(requests).iter().for_each(|answer| put_answer(&mut bytes, answer));
    bytes
}

/// Sets the version of the backend API that the server claims.
#[unsafe(no_mangle)]
pub extern "C" fn testserver_api(major: u32, minor: u32) {
    *API.lock().expect("not poisoned") = (major, minor);
}

/// Loads a model; returns null and sets `error` if the backend refuses.
///
/// # Safety
/// `config` and `folder` are texts of C; `error` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn testserver_load(
    config: *const c_char,
    folder: *const c_char,
    error: *mut Bytes,
) -> *mut Loaded {
    // SAFETY: the caller's promise.
    let (config, folder) = unsafe { (CStr::from_ptr(config), CStr::from_ptr(folder)) };
    match Loaded::new(config.to_owned(), folder.to_owned()) {
        Ok(loaded) => Box::into_raw(Box::new(loaded)),
        Err(message) => {
            // SAFETY: the caller's promise.
            unsafe { *error = message.into_bytes().into() };
            null_mut()
        }
    }
}

/// Answers a batch.
///
/// # Safety
/// `loaded` comes from [`testserver_load`]; `data` has `size` bytes in this module's format.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn testserver_execute(
    loaded: *mut Loaded,
    data: *const u8,
    size: usize,
    answers: *mut Bytes,
) {
    // SAFETY: the caller's promise.
    let (loaded, requests) = unsafe { (&mut *loaded, std::slice::from_raw_parts(data, size)) };
    // SAFETY: the caller's promise.
    unsafe { *answers = execute(loaded, requests).into() };
}

/// Unloads a model.
///
/// # Safety
/// `loaded` comes from [`testserver_load`] and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn testserver_unload(loaded: *mut Loaded) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(loaded) });
}

/// Frees bytes of this module.
///
/// # Safety
/// `bytes` comes from this module and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn testserver_free(bytes: Bytes) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.size)) });
}
