//! Settings of the step, from the configuration of the model.

use std::collections::BTreeMap;

use serde_json::Value;

/// What an output carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Token IDs.
    InputIds,
    /// 1 for a token, 0 for padding.
    AttentionMask,
    /// Which text of a pair a token is of.
    TokenTypeIds,
    /// 1 for special tokens and padding.
    SpecialTokensMask,
    /// `[begin, end)` of a token in characters of its text.
    Offsets,
    /// Tokens of a row.
    Lengths,
}

const KINDS: [(&str, Kind); 6] = [
    ("InputIds", Kind::InputIds),
    ("AttentionMask", Kind::AttentionMask),
    ("TokenTypeIds", Kind::TokenTypeIds),
    ("SpecialTokensMask", Kind::SpecialTokensMask),
    ("Offsets", Kind::Offsets),
    ("Lengths", Kind::Lengths),
];

/// How rows are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Each request to its own longest row.
    Ragged,
    /// To the most tokens of a row.
    Fixed,
    /// To the next bucket that holds the request's longest row.
    Bucketed,
    /// To the longest row of all requests of the batch.
    Longest,
}

const PADDINGS: [(&str, Padding); 4] = [
    ("Ragged", Padding::Ragged),
    ("Fixed", Padding::Fixed),
    ("Bucketed", Padding::Bucketed),
    ("Longest", Padding::Longest),
];

/// What happens to rows that are too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// The longer text of a pair is cut first.
    LongestFirst,
    /// The first text alone is cut.
    OnlyFirst,
    /// The second text alone is cut.
    OnlySecond,
    /// They are an error.
    Refuse,
}

impl Truncation {
    /// Returns the value of the parameter.
    pub fn name(self) -> &'static str {
        TRUNCATIONS.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

const TRUNCATIONS: [(&str, Truncation); 4] = [
    ("LongestFirst", Truncation::LongestFirst),
    ("OnlyFirst", Truncation::OnlyFirst),
    ("OnlySecond", Truncation::OnlySecond),
    ("Refuse", Truncation::Refuse),
];

/// Element type of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integer {
    /// 32 bits.
    Int32,
    /// 64 bits.
    Int64,
}

impl Integer {
    /// Returns the bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::Int32 => 4,
            Self::Int64 => 8,
        }
    }
}

/// One output tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// What it carries.
    pub kind: Kind,
    /// Its element type.
    pub integer: Integer,
}

/// What the step is configured with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether the model has a batch axis.
    pub batched: bool,
    /// Whether Triton forms batches before an instance is free to execute them.
    pub prefetches: bool,
    /// Whether Triton keeps responses of the model, also errors: it returns these to later requests
    /// as responses without outputs.
    pub caches: bool,
    /// Input of the texts and, for pairs, that of the second ones.
    pub names: Vec<String>,
    /// How rows are padded.
    pub padding: Padding,
    /// What happens to rows that are too long.
    pub truncation: Truncation,
    /// Whether special tokens are added.
    pub special_tokens: bool,
    /// Most tokens of a row; `None` for no limit.
    pub max_length: Option<usize>,
    /// Row lengths of padding `Bucketed`, ascending; the last is `max_length`.
    pub buckets: Vec<usize>,
    /// The outputs.
    pub outputs: Vec<Output>,
    /// Name of the tokenizer's file in the version folder.
    pub file: String,
}

impl Settings {
    /// Reads the settings from a model configuration in JSON.
    ///
    /// # Errors
    /// The message for the person who wrote the configuration.
    pub fn parse(json: &str) -> Result<Self, String> {
        let config: Value = serde_json::from_str(json)
            .map_err(|error| format!("the model configuration: {error}"))?;
        let parameters = Parameters::of(&config);
        let names = input_names(&config, &parameters)?;
        let padding = parameters.choice("tritonpipe.padding", &PADDINGS)?;
        let truncation = parameters.choice("tritonpipe.truncation", &TRUNCATIONS)?;
        let special_tokens = parameters
            .choice("tritonpipe.special_tokens", &[("Enabled", true), ("Disabled", false)])?;
        let max_length = max_length(&parameters, padding)?;
        let buckets = buckets(parameters.get("tritonpipe.buckets").unwrap_or(""), max_length)?;
        let outputs = outputs(&config, &parameters)?;
        if truncation == Truncation::OnlySecond && names.len() == 1 {
            return Err("tritonpipe.truncation: OnlySecond cuts the second text of a pair, but \
                        tritonpipe.text_pair is not set"
                .into());
        }
        Ok(Self {
            batched: config["max_batch_size"].as_i64().unwrap_or(0) > 0,
            prefetches: prefetches(&config["dynamic_batching"]),
            caches: config["response_cache"]["enable"].as_bool().unwrap_or(false),
            names,
            padding,
            truncation,
            special_tokens,
            max_length,
            buckets,
            outputs,
            file: parameters.get("tritonpipe.tokenizer_file").unwrap_or("tokenizer.json").into(),
        })
    }

    /// Returns whether rows are pairs of texts.
    pub fn pairs(&self) -> bool {
        self.names.len() == 2
    }

    /// Returns whether an output carries `kind`.
    pub fn has(&self, kind: Kind) -> bool {
        self.outputs.iter().any(|output| output.kind == kind)
    }

    /// Returns the row length after padding, for rows of which the longest has `longest` tokens.
    pub fn width(&self, longest: usize) -> usize {
        match self.padding {
            Padding::Fixed => self.max_length.unwrap_or(longest),
            Padding::Bucketed => {
                self.buckets.iter().copied().find(|bucket| *bucket >= longest).unwrap_or(longest)
            }
            Padding::Ragged | Padding::Longest => longest,
        }
    }
}

/// Returns whether Triton forms batches ahead: not with priorities or a queue policy
/// (`support_prefetching_` in scheduler_utils.cc).
fn prefetches(batching: &Value) -> bool {
    let policy = &batching["default_queue_policy"];
    [
        &batching["priority_levels"],
        &policy["default_timeout_microseconds"],
        &policy["allow_timeout_override"],
        &policy["max_queue_size"],
    ]
    .iter()
    // Triton writes 64-bit integers as numbers or texts.
    .all(|value| matches!(value.to_string().trim_matches('"'), "null" | "0" | "false"))
}

struct Parameters<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Parameters<'a> {
    fn of(config: &'a Value) -> Self {
        let entries = config["parameters"].as_object().into_iter().flatten();
        Self(
            entries
                .filter_map(|(key, value)| Some((key.as_str(), value["string_value"].as_str()?)))
                .collect(),
        )
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).copied()
    }

    /// Returns a parameter's value; the first of `allowed` is the default.
    fn choice<T: Copy>(&self, key: &str, allowed: &[(&str, T)]) -> Result<T, String> {
        let Some(value) = self.get(key) else {
            return Ok(allowed[0].1);
        };
        allowed.iter().find(|(name, _)| *name == value).map(|(_, found)| *found).ok_or_else(|| {
            let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
            format!("{key}: {} is not one of {}", quoted(value), names.join(", "))
        })
    }
}

fn tensors<'a>(config: &'a Value, key: &str) -> Vec<(&'a str, &'a str)> {
    let entries = config[key].as_array().into_iter().flatten();
    entries
        .filter_map(|tensor| Some((tensor["name"].as_str()?, tensor["data_type"].as_str()?)))
        .collect()
}

fn input_names(config: &Value, parameters: &Parameters<'_>) -> Result<Vec<String>, String> {
    let mut names = vec![parameters.get("tritonpipe.text").unwrap_or("TEXT").to_owned()];
    if let Some(second) = parameters.get("tritonpipe.text_pair") {
        if names[0] == second {
            return Err(format!(
                "tritonpipe.text_pair: {second} is also tritonpipe.text, but a pair requires two inputs"
            ));
        }
        names.push(second.to_owned());
    }
    let inputs = tensors(config, "input");
    let fits = inputs.len() == names.len()
        && names.iter().all(|name| inputs.contains(&(name.as_str(), "TYPE_STRING")));
    if !fits {
        let wanted = match &names[..] {
            [text, pair] => format!("exactly two inputs, {text} and {pair}"),
            _ => format!("exactly one input, {}", names[0]),
        };
        let found: Vec<String> = inputs
            .iter()
            .map(|(name, kind)| format!("{}: {}", quoted(name), quoted(kind)))
            .collect();
        return Err(format!(
            "the tokenizer needs {wanted} of TYPE_STRING, but the model has {{{}}}",
            found.join(", ")
        ));
    }
    Ok(names)
}

fn max_length(parameters: &Parameters<'_>, padding: Padding) -> Result<Option<usize>, String> {
    let Some(text) = parameters.get("tritonpipe.max_length") else {
        if let Padding::Fixed | Padding::Bucketed = padding {
            return Err(format!(
                "tritonpipe.max_length is missing, but tritonpipe.padding {padding:?} requires it"
            ));
        }
        return Ok(None);
    };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<usize>() {
        Ok(length) if digits && length >= 1 => Ok(Some(length)),
        _ => Err(format!(
            "tritonpipe.max_length: {} is not a positive number of tokens",
            quoted(text)
        )),
    }
}

/// Returns bucket lengths in ascending order; the most tokens of a row are always the last.
fn buckets(text: &str, max_length: Option<usize>) -> Result<Vec<usize>, String> {
    let most = max_length.unwrap_or(usize::MAX);
    let mut lengths = vec![most];
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let bucket: i64 = part.parse().map_err(|_| {
            format!("tritonpipe.buckets: {} is not a list of lengths", quoted(text))
        })?;
        match usize::try_from(bucket) {
            Ok(bucket) if bucket >= 1 => lengths.push(bucket.min(most)),
            _ => return Err(format!("tritonpipe.buckets: {} has a length below 1", quoted(text))),
        }
    }
    lengths.sort_unstable();
    lengths.dedup();
    Ok(lengths)
}

fn outputs(config: &Value, parameters: &Parameters<'_>) -> Result<Vec<Output>, String> {
    let written = parameters.get("tritonpipe.outputs").unwrap_or("{}");
    let kinds: BTreeMap<String, String> =
        serde_json::from_str(written).map_err(|error| format!("tritonpipe.outputs: {error}"))?;
    let declared: BTreeMap<&str, &str> = tensors(config, "output").into_iter().collect();
    if !kinds.keys().map(String::as_str).eq(declared.keys().copied()) {
        return Err(format!(
            "tritonpipe.outputs lists {}, but the model's outputs are {}",
            list(kinds.keys().map(String::as_str)),
            list(declared.keys().copied())
        ));
    }
    let mut found = Vec::with_capacity(kinds.len());
    for (name, kind) in &kinds {
        let known = KINDS.iter().find(|(text, _)| text == kind).ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().map(|(text, _)| *text).collect();
            format!(
                "tritonpipe.outputs: {name} is {}, not one of {}",
                quoted(kind),
                names.join(", ")
            )
        })?;
        let integer = match declared[name.as_str()] {
            "TYPE_INT32" => Integer::Int32,
            "TYPE_INT64" => Integer::Int64,
            other => {
                return Err(format!(
                    "output {name} is {other}, but tokens are TYPE_INT32 or TYPE_INT64"
                ));
            }
        };
        found.push(Output { name: name.clone(), kind: known.1, integer });
    }
    Ok(found)
}

/// Returns a text as Python's `repr` writes it, for texts without control characters.
fn quoted(text: &str) -> String {
    if text.contains('\'') && !text.contains('"') {
        return format!("\"{}\"", text.replace('\\', "\\\\"));
    }
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    format!("[{}]", names.map(quoted).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(inputs: &[&str], parameters: &[(&str, &str)]) -> String {
        let inputs: Vec<Value> = inputs
            .iter()
            .map(|name| serde_json::json!({"name": name, "data_type": "TYPE_STRING"}))
            .collect();
        let mut written = serde_json::Map::new();
        written.insert(
            "tritonpipe.outputs".into(),
            serde_json::json!({"string_value": "{\"ids\": \"InputIds\"}"}),
        );
        for (key, value) in parameters {
            written.insert(format!("tritonpipe.{key}"), serde_json::json!({"string_value": value}));
        }
        serde_json::json!({
            "max_batch_size": 8,
            "input": inputs,
            "output": [{"name": "ids", "data_type": "TYPE_INT32"}],
            "parameters": written,
        })
        .to_string()
    }

    #[test]
    fn defaults_are_those_of_the_python_step() {
        let read = Settings::parse(&config(&["TEXT"], &[])).unwrap();
        assert_eq!(
            (read.padding, read.truncation, read.special_tokens, read.max_length),
            (Padding::Ragged, Truncation::LongestFirst, true, None)
        );
        assert!(read.batched && !read.pairs() && read.has(Kind::InputIds));
        assert_eq!(read.outputs[0].integer.size(), 4);
        assert_eq!(read.file, "tokenizer.json");
        assert!(!read.caches);
    }

    #[test]
    fn a_response_cache_is_noticed() {
        let text = config(&["TEXT"], &[]);
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config["response_cache"] = serde_json::json!({"enable": true});
        assert!(Settings::parse(&config.to_string()).unwrap().caches);
    }

    #[test]
    fn a_queue_policy_or_priorities_keep_triton_from_forming_batches_ahead() {
        for (batching, expected) in [
            (serde_json::json!(null), true),
            (serde_json::json!({"max_queue_delay_microseconds": "100"}), true),
            (
                serde_json::json!({"priority_levels": "0", "default_queue_policy": {
                    "allow_timeout_override": false, "max_queue_size": 0,
                    "default_timeout_microseconds": 0,
                }}),
                true,
            ),
            (serde_json::json!({"priority_levels": "2"}), false),
            (serde_json::json!({"default_queue_policy": {"max_queue_size": 8}}), false),
            (serde_json::json!({"default_queue_policy": {"allow_timeout_override": true}}), false),
            (
                serde_json::json!({"default_queue_policy": {"default_timeout_microseconds": "9"}}),
                false,
            ),
        ] {
            assert_eq!(prefetches(&batching), expected, "{batching}");
        }
    }

    #[test]
    fn widths_follow_the_padding() {
        let parameters = [("padding", "Bucketed"), ("max_length", "32"), ("buckets", "16, 8,64")];
        let read = Settings::parse(&config(&["TEXT"], &parameters)).unwrap();
        assert_eq!(read.buckets, [8, 16, 32]);
        assert_eq!([1, 8, 9, 17, 32].map(|longest| read.width(longest)), [8, 8, 16, 32, 32]);
    }

    #[test]
    fn errors_have_the_words_of_the_python_step() {
        let pair = ("text_pair", "OTHER");
        for (inputs, parameters, expected) in [
            (
                &["TEXT"][..],
                &[("padding", "No")][..],
                "tritonpipe.padding: 'No' is not one of Ragged, Fixed, Bucketed, Longest",
            ),
            (
                &["TEXT"],
                &[("padding", "Fixed")],
                "tritonpipe.max_length is missing, but tritonpipe.padding Fixed requires it",
            ),
            (
                &["TEXT"],
                &[("max_length", "0")],
                "tritonpipe.max_length: '0' is not a positive number of tokens",
            ),
            (
                &["TEXT"],
                &[("buckets", "0"), ("max_length", "9")],
                "tritonpipe.buckets: '0' has a length below 1",
            ),
            (
                &["TEXT"],
                &[("truncation", "OnlySecond")],
                "tritonpipe.truncation: OnlySecond cuts the second text of a pair, but tritonpipe.text_pair is not set",
            ),
            (
                &["A"],
                &[],
                "the tokenizer needs exactly one input, TEXT of TYPE_STRING, but the model has {'A': 'TYPE_STRING'}",
            ),
            (
                &["TEXT"],
                &[pair],
                "the tokenizer needs exactly two inputs, TEXT and OTHER of TYPE_STRING, but the \
                 model has {'TEXT': 'TYPE_STRING'}",
            ),
            (
                &["TEXT"],
                &[("text_pair", "TEXT")],
                "tritonpipe.text_pair: TEXT is also tritonpipe.text, but a pair requires two inputs",
            ),
            (
                &["TEXT"],
                &[("outputs", "{}")],
                "tritonpipe.outputs lists [], but the model's outputs are ['ids']",
            ),
            (
                &["TEXT"],
                &[("outputs", "{\"ids\": \"Ids\"}")],
                "tritonpipe.outputs: ids is 'Ids', not one of InputIds, AttentionMask, TokenTypeIds, \
                 SpecialTokensMask, Offsets, Lengths",
            ),
        ] {
            assert_eq!(Settings::parse(&config(inputs, parameters)).unwrap_err(), expected);
        }
    }
}
