//! Any bytes as requests of one batch: each is answered, and a good one beside them is not harmed.
#![no_main]

use std::cell::RefCell;
use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use testserver::fixtures::{Choices, config, folder, load, raw_request, request};
use testserver::model::{Loaded, Request};

/// Tokenizers of the kinds that the comparison uses; files in `TOKENIZERS`, separated by `:`.
fn tokenizers() -> Vec<Vec<u8>> {
    let listed = std::env::var("TOKENIZERS").expect("TOKENIZERS lists files of tokenizers");
    listed.split(':').map(|path| std::fs::read(path).expect("a tokenizer")).collect()
}

type Models = HashMap<(usize, String), Option<Loaded>>;

thread_local! {
    static FILES: Vec<Vec<u8>> = tokenizers();
    static MODELS: RefCell<Models> = RefCell::default();
}
const MOST_MODELS: usize = 64;

fn drawn(choices: &mut Choices<'_>, inputs: usize) -> Request {
    let shapes: [&[i64]; 7] =
        [&[1, 1], &[2, 1], &[3], &[1, 3], &[], &[-1, 1], &[i64::MAX, i64::MAX]];
    let shape = shapes[choices.below(shapes.len())];
    let buffers: Vec<&[u8]> = (0..choices.below(3))
        .map(|_| {
            let size = choices.below(64);
            choices.bytes(size)
        })
        .collect();
    if choices.below(4) > 0 {
        let rows: Vec<String> =
            buffers.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        return request(inputs, &rows);
    }
    let mut made = raw_request(inputs, shape, &buffers);
    if choices.below(8) == 0 {
        made.inputs.pop();
    } else if choices.below(8) == 0 {
        made.inputs[0].data_type = 9;
    }
    made.outputs.truncate(choices.below(7));
    made
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let number = FILES.with(|files| choices.below(files.len()));
    let (config, inputs) = config(&mut choices);
    MODELS.with_borrow_mut(|models| {
        if models.len() > MOST_MODELS {
            models.clear();
        }
        let model = models.entry((number, config)).or_insert_with_key(|(number, config)| {
            let folder = FILES.with(|files| folder(&files[*number]));
            load(config, &folder).ok()
        });
        let Some(model) = model else { return };
        let good = || request(inputs, &["fox"]);
        let alone = model.execute(vec![good()]).remove(0);
        let mut batch = vec![good()];
        while !choices.is_empty() && batch.len() < 6 {
            batch.push(drawn(&mut choices, inputs));
        }
        let beside = model.execute(batch).remove(0);
        assert_eq!(alone.is_ok(), beside.is_ok());
    });
});
