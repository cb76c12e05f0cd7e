//! Any bytes as a tokenizer's file: it loads or is refused, and requests are answered.
#![no_main]

use libfuzzer_sys::fuzz_target;
use testserver::fixtures::{Choices, config, folder, load, request};

const TEXTS: [&str; 6] =
    ["", "the quick brown fox", "[CLS] x [SEP]", "été 日本 \u{fdfa}\u{301}", "a\0b\tc", "  a  b "];

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let head = choices.bytes(8);
    let (config, inputs) = config(&mut Choices::new(head));
    let folder = folder(choices.rest());
    if let Ok(mut model) = load(&config, &folder) {
        let batch = vec![request(inputs, &TEXTS), request(inputs, &["x"; 3])];
        let answers = model.execute(batch);
        assert_eq!(answers.len(), 2);
    }
});
