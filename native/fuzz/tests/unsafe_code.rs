//! Every unsafe block of the backend runs here once with good and bad input.
//!
//! `make miri-native` runs this test in Miri, which finds undefined behaviour. Miri cannot call C,
//! so the tokenizer has no regular expressions.

use std::ffi::CString;
use std::sync::{Arc, Barrier};

use testserver::api::HIGHEST;
use testserver::fixtures::{Choices, config, folder, load, raw_request, request};
use testserver::model::{Answer, Loaded, Request};

const TOKENIZER: &str = r###"{
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": null, "decoder": null,
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "the": 1, "a": 2, "##x": 3}}
}"###;
const INVALID_ARGUMENT: i32 = 3;
const CANCELLED: i32 = 7;

/// Returns a model with all outputs (INT32) and one or two inputs.
fn model(inputs: u8) -> Loaded {
    // The choices of a configuration, in the order in which it takes them.
    let drawn = [inputs - 1, 0, 0, 0, 31, 63, 0, 1];
    let (config, _) = config(&mut Choices::new(&drawn));
    load(&config, &folder(TOKENIZER.as_bytes())).unwrap()
}

fn error(answer: &Answer) -> (i32, String) {
    let (code, text) = answer.as_ref().map(|_| ()).unwrap_err();
    (*code, text.to_string_lossy().into_owned())
}

/// Returns the content of an output as numbers.
fn numbers(answer: &Answer, name: &str) -> Vec<i32> {
    let outputs = answer.as_ref().unwrap();
    let found = outputs.iter().find(|output| output.name.to_bytes() == name.as_bytes()).unwrap();
    found.content.chunks_exact(4).map(|part| i32::from_ne_bytes(part.try_into().unwrap())).collect()
}

/// Returns a request whose bytes are in several buffers.
fn in_parts(text: &str) -> Request {
    let mut content = (text.len() as u32).to_le_bytes().to_vec();
    content.extend_from_slice(text.as_bytes());
    let (first, rest) = content.split_at(2);
    raw_request(1, &[1, 1], &[first, &[], rest])
}

#[test]
fn each_request_of_a_batch_is_answered() {
    let mut single = model(1);
    let mut missing = request(1, &["ax"]);
    missing.inputs.clear();
    let mut other_type = request(1, &["ax"]);
    other_type.inputs[0].data_type = 9;
    let mut few_outputs = request(1, &["ax"]);
    few_outputs.outputs = vec![CString::new("Lengths").unwrap()];
    let answers = single.execute(vec![
        request(1, &["The ax the", "ax"]),
        in_parts("ax the"),
        raw_request(1, &[1, 1], &[]),
        raw_request(1, &[], &[]),
        raw_request(1, &[1, 1], &[&[9, 0, 0, 0, b'a']]),
        raw_request(1, &[1, 1], &[&[1, 0, 0, 0, 0xff]]),
        missing,
        other_type,
        few_outputs,
    ]);
    assert_eq!(numbers(&answers[0], "Lengths"), [4, 2]);
    assert_eq!(numbers(&answers[1], "InputIds"), [2, 3, 1]);
    for (answer, words) in answers[2..8].iter().zip([
        "row 0 of TEXT ends beyond",
        "shape []",
        "row 0 of TEXT ends beyond",
        "not valid UTF-8",
        "TEXT is missing",
        "data type BYTES",
    ]) {
        let (code, text) = error(answer);
        assert_eq!(code, INVALID_ARGUMENT, "{text}");
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(answers[8].as_ref().unwrap().len(), 1);
}

#[test]
fn a_cancelled_request_is_not_tokenized() {
    let mut cancelled = request(1, &["ax"]);
    cancelled.cancelled = true;
    let answers = model(1).execute(vec![cancelled, request(1, &["ax the"])]);
    assert_eq!(error(&answers[0]), (CANCELLED, "the request was cancelled".into()));
    assert_eq!(numbers(&answers[1], "Lengths"), [3]);
}

#[test]
fn a_new_instance_answers_while_another_executes() {
    let gate = Arc::new(Barrier::new(2));
    let mut slow = request(1, &["the"]);
    slow.gate = Some(Arc::clone(&gate));
    let batch = vec![request(1, &["ax the"]), in_parts("ax")];
    let (other, answers) = model(1).execute_with_new(vec![slow], &gate, batch);
    assert_eq!(numbers(&other[0], "Lengths"), [1]);
    assert_eq!(numbers(&answers[0], "InputIds"), [2, 3, 1]);
    assert_eq!(numbers(&answers[1], "Lengths"), [2]);
    assert_eq!(*HIGHEST.lock().unwrap(), 2.0, "passed requests count as waiting");
}

#[test]
fn two_models_are_loaded_and_unloaded() {
    let (mut pairs, mut single) = (model(2), model(1));
    let answers = pairs.execute(vec![request(2, &["ax", "the"])]);
    assert_eq!(numbers(&answers[0], "TokenTypeIds").len(), 2 * 4);
    drop(pairs);
    assert!(single.execute(vec![request(1, &[""])])[0].is_ok());
}

#[test]
fn a_model_that_cannot_be_loaded_is_an_error() {
    let folder = folder(b"{}");
    let refused = load("{}", &folder).err().unwrap();
    assert!(!refused.is_empty());
}
