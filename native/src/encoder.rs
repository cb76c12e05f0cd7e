//! Encodes texts and pairs of texts as token columns, with the word cache or with the library.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tokenizers::{
    Encoding, PaddingParams, PostProcessor, Tokenizer, TruncationParams, TruncationStrategy,
};

use crate::checks;
use crate::pairs::{PairLayout, check_single, shares};
use crate::row_limit::RowLimit;
use crate::settings::{Kind, Settings, Truncation};
use crate::words::{WordMemory, WordRules};

/// Most bytes of a tokenizer's file. Parsed, it needs about ten times as many.
const MOST_FILE_BYTES: u64 = 256 << 20;
const PAD_TOKENS: [&str; 5] = ["[PAD]", "<pad>", "<|pad|>", "<PAD>", "pad"];
/// File next to a tokenizer that has tokens unknown to the model: `{"ids": n}`.
const KNOWN_IDS: &str = "known_ids.json";

/// A text, or a pair of texts.
pub type Row<'a> = (&'a str, Option<&'a str>);

/// Why a row has no tokens.
#[derive(Debug, PartialEq, Eq)]
pub enum RowError {
    /// The text of a pair that is not to be cut has so many tokens that none is left for the other.
    NoRoom(usize),
    /// The row is larger than [`MOST_ROW_BYTES`](crate::row_limit::MOST_ROW_BYTES).
    TooLarge,
    /// What the library said.
    Library(String),
}

/// Tokens of rows laid end to end; only the columns that the outputs need are filled.
#[derive(Default)]
pub struct Columns {
    /// Tokens of each row, at least 1.
    pub lengths: Vec<usize>,
    /// Token IDs, if the outputs or the limit of known IDs need them.
    pub ids: Vec<u32>,
    /// Token type IDs.
    pub types: Vec<u32>,
    /// Marks of special tokens.
    pub special: Vec<u32>,
    /// Begin and end of tokens in characters.
    pub offsets: Vec<(usize, usize)>,
    /// Tokens of all rows.
    pub tokens: usize,
}

impl Columns {
    /// Returns the elements that the largest column has memory for.
    pub fn capacity(&self) -> usize {
        let tokens = [self.ids.capacity(), self.types.capacity(), self.special.capacity()];
        let others = [self.lengths.capacity(), self.offsets.capacity()];
        tokens.into_iter().chain(others).max().unwrap_or(0)
    }

    /// Removes the rows from `rows` on, whose first token is `tokens`.
    pub fn truncate(&mut self, rows: usize, tokens: usize) {
        self.lengths.truncate(rows);
        self.ids.truncate(tokens);
        self.types.truncate(tokens);
        self.special.truncate(tokens);
        self.offsets.truncate(tokens);
        self.tokens = tokens;
    }
}

/// Values of padding.
#[derive(Clone, Copy, Debug)]
pub struct Pads {
    /// Token ID.
    pub id: u32,
    /// Token type ID.
    pub kind: u32,
}

/// Which columns are filled.
struct Needs {
    ids: bool,
    types: bool,
    special: bool,
    offsets: bool,
}

/// The tokenizer of a model, shared by its instances.
pub struct Encoder {
    tokenizer: Tokenizer,
    needs: Needs,
    special_tokens: bool,
    /// Special tokens of a row.
    pub special: usize,
    truncation: Truncation,
    /// Most tokens of a row that is cut; `None` if none is.
    cut: Option<usize>,
    layout: Option<PairLayout>,
    char_offsets: bool,
    words: Option<WordRules>,
    limit: RowLimit,
    /// Values of padding.
    pub pads: Pads,
    /// Token IDs that the model knows, from 0; `None` if it knows all.
    known: Option<u32>,
}

impl Encoder {
    /// Reads the tokenizer in a version folder.
    ///
    /// # Errors
    /// The reason of the failed load: the file is not one of a tokenizer, or not for these settings.
    pub fn load(folder: &Path, settings: &Settings) -> Result<Self, String> {
        let path = folder.join(&settings.file);
        let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
        let bytes = std::fs::metadata(&path).map_or(0, |found| found.len());
        if bytes > MOST_FILE_BYTES {
            return Err(format!(
                "{file}: has {bytes} bytes, more than the {MOST_FILE_BYTES} allowed; use a smaller \
                 vocabulary"
            ));
        }
        let read = catch_unwind(|| Tokenizer::from_file(&path).map_err(|error| error.to_string()));
        let tokenizer = read
            .unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))
            .map_err(|error| format!("{file}: cannot be read as a tokenizer ({error})"))?;
        let mut encoder = catch_unwind(AssertUnwindSafe(|| Self::new(tokenizer, settings)))
            .unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))
            .map_err(|error| {
                if error.starts_with("tritonpipe.") { error } else { format!("{file}: {error}") }
            })?;
        if settings.has(Kind::InputIds) {
            encoder.known = known_ids(&path.with_file_name(KNOWN_IDS))?;
        }
        Ok(encoder)
    }

    /// Prepares a tokenizer; padding and truncation that were saved with it are switched off.
    ///
    /// # Errors
    /// The reason why it cannot be used with these settings.
    pub fn new(mut tokenizer: Tokenizer, settings: &Settings) -> Result<Self, String> {
        checks::check(&tokenizer, settings)?;
        let pairs = settings.pairs();
        let special_tokens = settings.special_tokens;
        let special = match tokenizer.get_post_processor() {
            Some(template) if special_tokens => template.added_tokens(pairs),
            _ => 0,
        };
        let needs = Needs {
            ids: settings.has(Kind::InputIds),
            types: settings.has(Kind::TokenTypeIds),
            special: settings.has(Kind::SpecialTokensMask),
            offsets: settings.has(Kind::Offsets),
        };
        let pads = pads(&tokenizer);
        tokenizer.with_padding(None::<PaddingParams>);
        let cut = settings.max_length.filter(|_| settings.truncation != Truncation::Refuse);
        let limit = RowLimit::of(&tokenizer)?;
        let layout = cut_rows(&mut tokenizer, settings, cut, special)?;
        // The fast call leaves out offsets and, without a post-processor, types of second texts.
        let typed = pairs && needs.types && tokenizer.get_post_processor().is_none();
        let simple = !(pairs || needs.special || needs.offsets || needs.types && pads.kind != 0);
        let words = if simple { WordRules::of(&tokenizer, special_tokens, cut) } else { None };
        Ok(Self {
            char_offsets: needs.offsets || typed,
            truncation: settings.truncation,
            known: None,
            tokenizer,
            needs,
            special_tokens,
            special,
            cut,
            layout,
            words,
            limit,
            pads,
        })
    }

    /// Returns an empty memory of words for one instance; `None` if the tokenizer needs the library.
    pub fn memory(&self) -> Option<WordMemory> {
        self.words.clone().map(WordMemory::new)
    }

    /// Appends the tokens of a row.
    ///
    /// # Errors
    /// Why it has none. `columns` may then hold a part of the row.
    pub fn encode(
        &self,
        row: Row<'_>,
        memory: Option<&mut WordMemory>,
        columns: &mut Columns,
    ) -> Result<(), RowError> {
        let attempt = catch_unwind(AssertUnwindSafe(|| {
            self.limit.check(&self.tokenizer, row)?;
            match memory {
                Some(memory) => self.encode_by_words(row.0, memory, columns),
                None => self.encode_by_library(row, columns),
            }
        }));
        attempt.unwrap_or_else(|panic| Err(RowError::Library(panic_message(panic.as_ref()))))
    }

    /// Returns the first token of `ids` that the model does not know, in words.
    pub fn unknown(&self, ids: &[u32]) -> Option<String> {
        let known = self.known?;
        let token = *ids.iter().find(|id| **id >= known)?;
        let name = self.tokenizer.id_to_token(token).unwrap_or_default();
        Some(format!("{name} (id {token})").trim().to_owned())
    }

    fn encode_by_words(
        &self,
        text: &str,
        memory: &mut WordMemory,
        columns: &mut Columns,
    ) -> Result<(), RowError> {
        let start = columns.ids.len();
        memory.encode(&self.tokenizer, text, &mut columns.ids).map_err(library_error)?;
        if columns.ids.len() == start {
            columns.ids.push(self.pads.id);
        }
        let length = columns.ids.len() - start;
        columns.lengths.push(length);
        columns.tokens += length;
        if self.needs.types {
            columns.types.resize(columns.tokens, 0);
        }
        Ok(())
    }

    fn encode_by_library(&self, row: Row<'_>, columns: &mut Columns) -> Result<(), RowError> {
        let made = self.library(row, self.special_tokens)?;
        let kept = self.kept_places(row, &made)?;
        self.append(&made, kept.as_deref(), columns);
        Ok(())
    }

    fn library(&self, row: Row<'_>, special_tokens: bool) -> Result<Encoding, RowError> {
        let tokenizer = &self.tokenizer;
        let made = match (row, self.char_offsets) {
            ((text, None), false) => tokenizer.encode_fast(text, special_tokens),
            ((text, None), true) => tokenizer.encode_char_offsets(text, special_tokens),
            ((text, Some(pair)), false) => tokenizer.encode_fast((text, pair), special_tokens),
            ((text, Some(pair)), true) => {
                tokenizer.encode_char_offsets((text, pair), special_tokens)
            }
        };
        made.map_err(library_error)
    }

    /// Returns the places of the tokens that stay of a pair that is too long; `None` if all do.
    fn kept_places(&self, row: Row<'_>, made: &Encoding) -> Result<Option<Vec<usize>>, RowError> {
        let (Some(layout), Some(most)) = (&self.layout, self.cut) else {
            return Ok(None);
        };
        if made.len() <= most {
            return Ok(None);
        }
        // Where the library has lost track of the texts: both are encoded alone before they are
        // put together.
        let first = if layout.tracked {
            made.get_sequence_ids().iter().filter(|text| **text == Some(0)).count()
        } else {
            self.library((row.0, None), false)?.len()
        };
        let second = made.len().saturating_sub(self.special + first);
        let Some(stay) = shares(first, second, most - self.special, self.truncation) else {
            let only_first = self.truncation == Truncation::OnlyFirst;
            return Err(RowError::NoRoom(if only_first { second } else { first }));
        };
        Ok(Some(layout.kept([first, second], stay)))
    }

    fn append(&self, made: &Encoding, kept: Option<&[usize]>, columns: &mut Columns) {
        let length = kept.map_or(made.len(), <[usize]>::len);
        let needs = &self.needs;
        if length == 0 {
            columns.lengths.push(1);
            columns.tokens += 1;
            push_if(needs.ids, &mut columns.ids, self.pads.id);
            push_if(needs.types, &mut columns.types, self.pads.kind);
            push_if(needs.special, &mut columns.special, 1);
            push_if(needs.offsets, &mut columns.offsets, (0, 0));
            return;
        }
        columns.lengths.push(length);
        columns.tokens += length;
        extend_if(needs.ids, &mut columns.ids, made.get_ids(), kept);
        extend_if(needs.types, &mut columns.types, made.get_type_ids(), kept);
        extend_if(needs.special, &mut columns.special, made.get_special_tokens_mask(), kept);
        extend_if(needs.offsets, &mut columns.offsets, made.get_offsets(), kept);
    }
}

fn push_if<T>(needed: bool, column: &mut Vec<T>, value: T) {
    if needed {
        column.push(value);
    }
}

fn extend_if<T: Copy>(needed: bool, column: &mut Vec<T>, values: &[T], kept: Option<&[usize]>) {
    match kept {
        _ if !needed => {}
        None => column.extend_from_slice(values),
        Some(places) => column.extend(places.iter().map(|place| values[*place])),
    }
}

fn pads(tokenizer: &Tokenizer) -> Pads {
    match tokenizer.get_padding() {
        Some(padding) => Pads { id: padding.pad_id, kind: padding.pad_type_id },
        None => Pads {
            id: PAD_TOKENS.iter().find_map(|token| tokenizer.token_to_id(token)).unwrap_or(0),
            kind: 0,
        },
    }
}

/// Checks the template, and lets the library cut single texts at `cut`; returns how to cut pairs.
///
/// The library keeps all parts that it cuts off, of a pair each part of one text with each part of
/// the other: two texts of 60 kB would fill 16 GB.
fn cut_rows(
    tokenizer: &mut Tokenizer,
    settings: &Settings,
    cut: Option<usize>,
    special: usize,
) -> Result<Option<PairLayout>, String> {
    tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
    if !settings.pairs() {
        check_single(tokenizer, settings.special_tokens)?;
    }
    let Some(max_length) = cut else {
        return Ok(None);
    };
    if max_length <= special {
        return Err(format!(
            "tritonpipe.max_length: {max_length} leaves no room for text next to {special} special tokens"
        ));
    }
    if settings.pairs() {
        return PairLayout::of(tokenizer, settings.special_tokens).map(Some);
    }
    let strategy = match settings.truncation {
        Truncation::OnlyFirst => TruncationStrategy::OnlyFirst,
        _ => TruncationStrategy::LongestFirst,
    };
    let parameters = TruncationParams { max_length, strategy, ..TruncationParams::default() };
    tokenizer.with_truncation(Some(parameters)).map_err(|error| error.to_string())?;
    Ok(None)
}

fn known_ids(path: &Path) -> Result<Option<u32>, String> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("{KNOWN_IDS}: {error}"))?;
    let content: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("{KNOWN_IDS}: {error}"))?;
    let ids = content["ids"].as_u64().ok_or_else(|| format!("{KNOWN_IDS}: ids is missing"))?;
    Ok(Some(u32::try_from(ids).unwrap_or(u32::MAX)))
}

/// Returns the error of a row for one of the library.
pub fn library_error(error: Box<dyn std::error::Error + Send + Sync>) -> RowError {
    RowError::Library(error.to_string())
}

/// Returns the text of a caught panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it panicked".to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::row_limit::MOST_ROW_BYTES;
    use crate::settings::{Integer, Output, Padding};
    use crate::words::tests::bert;

    pub(crate) fn settings(kinds: &[Kind], names: &[&str], max_length: usize) -> Settings {
        Settings {
            batched: true,
            prefetches: true,
            caches: false,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            padding: Padding::Ragged,
            truncation: Truncation::LongestFirst,
            special_tokens: true,
            max_length: Some(max_length),
            buckets: vec![],
            outputs: kinds
                .iter()
                .map(|kind| Output {
                    name: format!("{kind:?}"),
                    kind: *kind,
                    integer: Integer::Int64,
                })
                .collect(),
            file: String::new(),
        }
    }

    #[test]
    fn single_texts_fill_the_columns() {
        let settings = settings(&[Kind::InputIds, Kind::Offsets], &["TEXT"], 5);
        let encoder = Encoder::new(bert(99), &settings).unwrap();
        assert!(encoder.memory().is_none());
        let mut columns = Columns::default();
        encoder.encode(("the fox the fox", None), None, &mut columns).unwrap();
        encoder.encode(("", None), None, &mut columns).unwrap();
        assert_eq!(columns.lengths, [5, 2]);
        assert_eq!(columns.ids, [2, 4, 5, 4, 3, 2, 3]);
        assert_eq!(columns.offsets[1..3], [(0, 3), (4, 7)]);
        assert!(columns.types.is_empty() && columns.special.is_empty());
        columns.truncate(1, 5);
        assert_eq!((columns.ids.len(), columns.offsets.len(), columns.tokens), (5, 5, 5));
    }

    #[test]
    fn pairs_are_cut_or_refused() {
        let mut settings = settings(&[Kind::InputIds, Kind::TokenTypeIds], &["A", "B"], 7);
        let encoder = Encoder::new(bert(99), &settings).unwrap();
        let mut columns = Columns::default();
        encoder.encode(("fox fox fox fox", Some("the the the")), None, &mut columns).unwrap();
        assert_eq!(columns.ids, [2, 5, 5, 3, 4, 4, 3]);
        assert_eq!(columns.types, [0, 0, 0, 0, 1, 1, 1]);
        settings.truncation = Truncation::OnlyFirst;
        let encoder = Encoder::new(bert(99), &settings).unwrap();
        let error = encoder.encode(("fox", Some("the the the the the")), None, &mut columns);
        assert_eq!(error, Err(RowError::NoRoom(5)));
    }

    #[test]
    fn rows_without_tokens_hold_one_pad_token() {
        let mut settings = settings(&[Kind::InputIds, Kind::TokenTypeIds], &["TEXT"], 7);
        settings.special_tokens = false;
        let encoder = Encoder::new(bert(99), &settings).unwrap();
        let mut memory = encoder.memory();
        assert!(memory.is_some());
        let mut columns = Columns::default();
        encoder.encode(("", None), memory.as_mut(), &mut columns).unwrap();
        assert_eq!((columns.ids, columns.types, columns.lengths), (vec![0], vec![0], vec![1]));
    }

    #[test]
    fn no_room_for_text_is_refused_at_load() {
        let error = Encoder::new(bert(99), &settings(&[Kind::InputIds], &["TEXT"], 2)).err();
        assert_eq!(
            error.as_deref(),
            Some("tritonpipe.max_length: 2 leaves no room for text next to 2 special tokens")
        );
    }

    #[test]
    fn a_template_must_insert_a_single_text_once() {
        use tokenizers::processors::template::TemplateProcessing;
        let refused = |template: &str, max_length, truncation| {
            let mut tokenizer = bert(99);
            let mut made = TemplateProcessing::builder();
            made.try_single(template).unwrap().special_tokens(vec![("[CLS]", 2)]);
            tokenizer.with_post_processor(Some(made.build().unwrap()));
            let mut settings = settings(&[Kind::InputIds], &["TEXT"], 7);
            settings.max_length = max_length;
            settings.truncation = truncation;
            Encoder::new(tokenizer, &settings).err()
        };
        for (max_length, truncation) in [
            (Some(7), Truncation::LongestFirst),
            (Some(7), Truncation::Refuse),
            (None, Truncation::OnlyFirst),
        ] {
            assert_eq!(refused("[CLS] $A:1", max_length, truncation), None);
            for (template, times) in [("$A [CLS] $A", 2), ("[CLS]", 0)] {
                assert_eq!(
                    refused(template, max_length, truncation).unwrap(),
                    format!(
                        "its post_processor inserts the text {times} times, but the text must occur \
                         once; save it with a template such as [CLS] $A [SEP]"
                    )
                );
            }
        }
    }

    #[test]
    fn rows_that_would_fill_the_memory_are_refused() {
        let single = settings(&[Kind::InputIds], &["TEXT"], 7);
        let mut tokenizer = bert(99);
        tokenizer.with_normalizer(Some(tokenizers::normalizers::unicode::NFKC)).unwrap();
        let encoder = Encoder::new(tokenizer, &single).unwrap();
        let mut columns = Columns::default();
        let mut encode = |text: &str| encoder.encode((text, None), None, &mut columns);
        assert_eq!(encode(&"a ".repeat(MOST_ROW_BYTES / 2)), Ok(()));
        assert_eq!(encode(&"a".repeat(MOST_ROW_BYTES + 1)), Err(RowError::TooLarge));
        // NFKC makes 33 bytes of these 3.
        let expanding = "\u{fdfa}";
        assert_eq!(encode(&expanding.repeat(MOST_ROW_BYTES / 33)), Ok(()));
        assert_eq!(encode(&expanding.repeat(MOST_ROW_BYTES / 30)), Err(RowError::TooLarge));
        let pairs = settings(&[Kind::InputIds], &["A", "B"], 7);
        let encoder = Encoder::new(bert(99), &pairs).unwrap();
        let half = "a".repeat(MOST_ROW_BYTES / 2 + 1);
        let both = encoder.encode((&half, Some(&half)), None, &mut columns);
        assert_eq!(both, Err(RowError::TooLarge));
    }

    #[test]
    fn short_texts_that_the_normalizer_makes_long_are_refused() {
        use tokenizers::normalizers::Replace;
        let single = settings(&[Kind::InputIds], &["TEXT"], 7);
        let encoder = |bytes: usize| {
            let mut tokenizer = bert(99);
            let replace = Replace::new(" ", "x".repeat(bytes)).unwrap();
            tokenizer.with_normalizer(Some(replace)).unwrap();
            Encoder::new(tokenizer, &single)
        };
        let mut columns = Columns::default();
        let refused = encoder(100).unwrap().encode((&" ".repeat(20_000), None), None, &mut columns);
        assert_eq!(refused, Err(RowError::TooLarge));
        let message = encoder(5_000).err().unwrap();
        assert!(message.contains("5000 times as long"), "{message}");
    }

    #[test]
    fn a_file_that_would_fill_the_memory_is_refused() {
        let folder = std::env::temp_dir().join(format!("large-tokenizer-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = std::fs::File::create(folder.join("tokenizer.json")).unwrap();
        file.set_len(MOST_FILE_BYTES + 1).unwrap();
        let mut settings = settings(&[Kind::InputIds], &["TEXT"], 7);
        settings.file = "tokenizer.json".into();
        let error = Encoder::load(&folder, &settings).err().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(
            error,
            "tokenizer.json: has 268435457 bytes, more than the 268435456 allowed; use a smaller \
             vocabulary"
        );
    }

    #[test]
    fn panics_have_a_message() {
        let panic = catch_unwind(|| panic!("number {}", 3)).unwrap_err();
        assert_eq!(panic_message(panic.as_ref()), "number 3");
    }
}
