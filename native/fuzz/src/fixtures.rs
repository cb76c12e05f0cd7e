//! Models for the fuzzers, in a temporary folder.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use crate::model::{Input, Loaded, Request};

const BYTES: i32 = 13;
/// Kinds of outputs that a configuration may ask for.
const OUTPUTS: [&str; 6] =
    ["InputIds", "AttentionMask", "TokenTypeIds", "SpecialTokensMask", "Offsets", "Lengths"];

/// A small number per byte of fuzzer input; 0 when there are no more.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// Returns the choices that `data` makes.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Returns a number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % count
    }

    /// Returns the next bytes, at most `count`.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        front
    }

    /// Returns all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns a configuration of the model, with any of its settings.
pub fn config(choices: &mut Choices<'_>) -> (String, usize) {
    let inputs = 1 + choices.below(2);
    let mut parameters = vec![
        ("padding", ["Ragged", "Fixed", "Bucketed", "Longest"][choices.below(4)].to_owned()),
        (
            "truncation",
            ["LongestFirst", "OnlyFirst", "OnlySecond", "Refuse"][choices.below(4)].to_owned(),
        ),
        ("special_tokens", ["Enabled", "Disabled"][choices.below(2)].to_owned()),
        ("max_length", (1 + choices.below(64)).to_string()),
        ("buckets", "3,17".to_owned()),
    ];
    if inputs == 2 {
        parameters.push(("text_pair", "OTHER".to_owned()));
    }
    let mask = choices.below(64);
    let chosen: Vec<&str> = OUTPUTS
        .iter()
        .enumerate()
        .filter(|(bit, _)| mask >> bit & 1 == 1)
        .map(|(_, k)| *k)
        .collect();
    let kinds: Vec<String> =
        chosen.iter().map(|kind| format!("\\\"{kind}\\\":\\\"{kind}\\\"")).collect();
    parameters.push(("outputs", format!("{{{}}}", kinds.join(","))));
    let written: Vec<String> = parameters
        .iter()
        .map(|(key, value)| format!("\"tritonpipe.{key}\":{{\"string_value\":\"{value}\"}}"))
        .collect();
    let names = ["TEXT", "OTHER"];
    let texts: Vec<String> = names[..inputs]
        .iter()
        .map(|name| format!("{{\"name\":\"{name}\",\"data_type\":\"TYPE_STRING\"}}"))
        .collect();
    let integer = ["TYPE_INT32", "TYPE_INT64"][choices.below(2)];
    let outputs: Vec<String> = chosen
        .iter()
        .map(|kind| format!("{{\"name\":\"{kind}\",\"data_type\":\"{integer}\"}}"))
        .collect();
    let rows = [0, 64][choices.below(2)];
    let text = format!(
        "{{\"max_batch_size\":{rows},\"input\":[{}],\"output\":[{}],\"parameters\":{{{}}}}}",
        texts.join(","),
        outputs.join(","),
        written.join(",")
    );
    (text, inputs)
}

/// Returns a folder of this thread with `tokenizer` as its version 1.
pub fn folder(tokenizer: &[u8]) -> PathBuf {
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let folder = std::env::temp_dir().join(format!("fuzz-tokenizer-{process}-{thread:?}"));
    std::fs::create_dir_all(folder.join("1")).expect("a temporary folder");
    std::fs::write(folder.join("1/tokenizer.json"), tokenizer).expect("a temporary file");
    folder
}

/// Loads a model.
///
/// # Errors
/// The message of the backend.
pub fn load(config: &str, folder: &Path) -> Result<Loaded, String> {
    let path = CString::new(folder.to_string_lossy().as_bytes()).expect("no NUL");
    Loaded::new(CString::new(config).expect("no NUL"), path)
}

/// Returns a well-formed request with these rows in each input.
pub fn request(inputs: usize, rows: &[&str]) -> Request {
    let content: Vec<u8> = rows
        .iter()
        .flat_map(|row| [&(row.len() as u32).to_le_bytes()[..], row.as_bytes()].concat())
        .collect();
    raw_request(inputs, &[rows.len() as i64, 1], &[&content])
}

/// Returns a request with the same shape and buffers in each input.
pub fn raw_request(inputs: usize, shape: &[i64], buffers: &[&[u8]]) -> Request {
    let input = |name: &str| Input {
        name: CString::new(name).expect("no NUL"),
        data_type: BYTES,
        shape: shape.to_vec(),
        buffers: buffers.iter().map(|buffer| (*buffer).into()).collect(),
    };
    Request {
        inputs: ["TEXT", "OTHER"][..inputs].iter().map(|name| input(name)).collect(),
        outputs: OUTPUTS.iter().map(|kind| CString::new(*kind).expect("no NUL")).collect(),
        answer: None,
        cancelled: false,
        gate: None,
        released: false,
    }
}
