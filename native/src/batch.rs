//! One batch of requests: texts to spans of rows and their widths, with an error per bad request.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::encoder::{Columns, Encoder, Row, RowError, panic_message};
use crate::layout::{MOST_BYTES, Span, size};
use crate::row_limit::MOST_ROW_BYTES;
use crate::settings::{Kind, Padding, Settings, Truncation};
use crate::texts::Input;
use crate::words::WordMemory;

/// Tokens for which columns keep their memory between batches.
const KEPT_TOKENS: usize = 1 << 16;

/// Cause of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The client: an invalid argument.
    Client,
    /// The tokenizer: an internal error.
    Tokenizer,
    /// Nobody: the client no longer waits for the answer.
    Cancelled,
}

/// Why a request gets an error.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The text for the client.
    pub message: String,
    /// Its kind.
    pub blame: Blame,
}

impl Refusal {
    /// Returns an error of the client.
    pub fn client(message: String) -> Self {
        Self { message, blame: Blame::Client }
    }

    /// Returns an error of the tokenizer.
    pub fn tokenizer(message: String) -> Self {
        Self { message, blame: Blame::Tokenizer }
    }

    /// Returns the error of a request that was cancelled.
    pub fn cancelled() -> Self {
        Self { message: "the request was cancelled".into(), blame: Blame::Cancelled }
    }
}

/// Runs a part of the work on requests; a panic becomes an error of the tokenizer.
pub fn caught<T>(work: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic_message(panic.as_ref());
        Err(Refusal::tokenizer(format!("the tokenizer failed on this request: {message}")))
    })
}

/// The rows of one request with their width; or its error.
pub type Answer = Result<(Span, usize), Refusal>;

/// What an instance works with, kept between batches.
pub struct Batch {
    /// Tokens of all rows of the batch.
    pub columns: Columns,
    memory: Option<WordMemory>,
}

impl Batch {
    /// Returns the working memory of a new instance.
    pub fn new(encoder: &Encoder) -> Self {
        Self { columns: Columns::default(), memory: encoder.memory() }
    }

    /// Forgets the tokens of the last batch.
    pub fn clear(&mut self) {
        if self.columns.capacity() > KEPT_TOKENS {
            self.columns = Columns::default();
        }
        self.columns.truncate(0, 0);
    }

    /// Tokenizes the inputs of one request, one per name of the settings.
    ///
    /// `proceed` is called before each row. An error of it ends the request.
    ///
    /// # Errors
    /// Why the request has no tokens; its rows are then removed again.
    pub fn add(
        &mut self,
        settings: &Settings,
        encoder: &Encoder,
        inputs: &[Input<'_>],
        proceed: impl Fn() -> Result<(), Refusal>,
    ) -> Result<Span, Refusal> {
        let (row, token) = (self.columns.lengths.len(), self.columns.tokens);
        let added = self.encode(settings, encoder, inputs, proceed);
        match added {
            Ok(rows) => Ok(Span { row, rows, token }),
            Err(refusal) => {
                self.columns.truncate(row, token);
                Err(refusal)
            }
        }
    }

    fn encode(
        &mut self,
        settings: &Settings,
        encoder: &Encoder,
        inputs: &[Input<'_>],
        proceed: impl Fn() -> Result<(), Refusal>,
    ) -> Result<usize, Refusal> {
        let rows = read_rows(settings, inputs).map_err(Refusal::client)?;
        let columns = settings.outputs.iter().filter(|output| output.kind != Kind::Lengths);
        let token_bytes: usize = columns.filter_map(|output| size(output, 1, 1)).sum();
        let (first_row, mut token) = (self.columns.lengths.len(), self.columns.tokens);
        for (number, row) in rows.iter().enumerate() {
            proceed()?;
            encoder
                .encode(*row, self.memory.as_mut(), &mut self.columns)
                .map_err(|error| row_refusal(settings, encoder, number, &error))?;
            // Padding only adds to this, so the response is refused before its columns grow.
            if (self.columns.tokens - token).saturating_mul(token_bytes) > MOST_BYTES {
                let tokens = self.columns.tokens - token;
                return Err(too_large(&format!("{} rows with {tokens} tokens", number + 1)));
            }
        }
        let lengths = &self.columns.lengths[first_row..];
        if settings.truncation == Truncation::Refuse {
            refuse_long(settings, lengths).map_err(Refusal::client)?;
        }
        for (number, length) in lengths.iter().enumerate() {
            let ids = self.columns.ids.get(token..token + length).unwrap_or(&[]);
            if let Some(unknown) = encoder.unknown(ids) {
                return Err(Refusal::client(format!(
                    "row {number} of {} contains the token {unknown}, which the model does not \
                     know; remove this token from the text",
                    settings.names.join(" and ")
                )));
            }
            token += length;
        }
        Ok(rows.len())
    }

    /// Gives each span the width of its rows, and refuses what would fill the memory.
    ///
    /// A span that only the rows of other requests would make too large keeps its own width.
    ///
    /// A panic in here would end the server, so it becomes the error of the request.
    pub fn answers(&self, settings: &Settings, spans: Vec<Result<Span, Refusal>>) -> Vec<Answer> {
        let together = settings.padding == Padding::Longest;
        let good = spans.iter().flatten();
        let of_all = good.filter_map(|span| caught(|| Ok(self.longest(span))).ok()).max();
        let answer = |span: Span| {
            let longest = self.longest(&span);
            let own = settings.width(longest);
            let common = settings.width(of_all.filter(|_| together).unwrap_or(longest));
            let fits = |width: &usize| response_fits(settings, span.rows, *width);
            let width = [common, own].into_iter().find(fits);
            let too_large = || too_large(&format!("{} rows of {own} tokens", span.rows));
            width.map(|width| (span, width)).ok_or_else(too_large)
        };
        spans.into_iter().map(|span| span.and_then(|span| caught(|| answer(span)))).collect()
    }

    /// Returns the tokens of the longest row.
    fn longest(&self, span: &Span) -> usize {
        let lengths = &self.columns.lengths[span.row..span.row + span.rows];
        lengths.iter().copied().max().unwrap_or(1)
    }
}

/// Returns whether the outputs of one request stay within the limit.
fn response_fits(settings: &Settings, rows: usize, width: usize) -> bool {
    let mut sizes = settings.outputs.iter().map(|output| size(output, rows, width));
    let bytes = sizes.try_fold(0usize, |sum, size| sum.checked_add(size?));
    bytes.is_some_and(|bytes| bytes <= MOST_BYTES)
}

fn too_large(what: &str) -> Refusal {
    Refusal::client(format!(
        "{what} need more than the {} MiB that the response can have; send fewer rows in a request",
        MOST_BYTES >> 20
    ))
}

fn read_rows<'a>(settings: &Settings, inputs: &[Input<'a>]) -> Result<Vec<Row<'a>>, String> {
    let mut texts = Vec::with_capacity(2);
    for input in inputs {
        texts.push(input.rows(settings.batched)?);
    }
    let mut columns = texts.into_iter();
    let first = columns.next().unwrap_or_default();
    let Some(second) = columns.next() else {
        return Ok(first.into_iter().map(|text| (text, None)).collect());
    };
    if first.len() != second.len() {
        let names = &settings.names;
        return Err(format!(
            "{} has {} rows, but {} has {}; send the same number of rows in both",
            names[0],
            first.len(),
            names[1],
            second.len()
        ));
    }
    Ok(first.into_iter().zip(second).map(|(text, pair)| (text, Some(pair))).collect())
}

fn refuse_long(settings: &Settings, lengths: &[usize]) -> Result<(), String> {
    let most = settings.max_length.unwrap_or(usize::MAX);
    let Some(row) = lengths.iter().position(|length| *length > most) else {
        return Ok(());
    };
    Err(format!(
        "row {row} of {} has {} tokens, but at most {most} tokens are allowed; shorten the text",
        settings.names.join(" and "),
        lengths[row]
    ))
}

fn row_refusal(settings: &Settings, encoder: &Encoder, row: usize, error: &RowError) -> Refusal {
    match error {
        RowError::TooLarge => Refusal::client(format!(
            "row {row} of {} is larger than the {MOST_ROW_BYTES} bytes allowed; shorten the text",
            settings.names.join(" and ")
        )),
        RowError::Library(message) => {
            Refusal::tokenizer(format!("the tokenizer failed on this request: {message}"))
        }
        RowError::NoRoom(kept) => {
            let (mut cut, mut uncut) =
                (&settings.names[0], &settings.names[settings.names.len() - 1]);
            if settings.truncation != Truncation::OnlyFirst {
                std::mem::swap(&mut cut, &mut uncut);
            }
            Refusal::client(format!(
                "row {row}: {uncut} has {kept} tokens, which with {} special tokens leaves no room \
                 for {cut} within the maximum of {}, and truncation {} shortens only {cut}; shorten {uncut}",
                encoder.special,
                settings.max_length.unwrap_or(usize::MAX),
                settings.truncation.name()
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Integer, Output};
    use crate::words::tests::bert;

    fn settings(padding: Padding, truncation: Truncation) -> Settings {
        Settings {
            batched: true,
            prefetches: true,
            caches: false,
            names: vec!["TEXT".into()],
            padding,
            truncation,
            special_tokens: true,
            max_length: Some(8),
            buckets: vec![4, 8],
            outputs: vec![Output {
                name: "ids".into(),
                kind: Kind::InputIds,
                integer: Integer::Int64,
            }],
            file: String::new(),
        }
    }

    fn encoded(rows: &[&str]) -> Vec<u8> {
        let elements = rows.iter().map(|row| ((row.len() as u32).to_le_bytes(), row.as_bytes()));
        elements.flat_map(|(length, text)| [&length[..], text].concat()).collect()
    }

    fn add(
        batch: &mut Batch,
        settings: &Settings,
        rows: &[&str],
        proceed: impl Fn() -> Result<(), Refusal>,
    ) -> Result<Span, Refusal> {
        let encoder = Encoder::new(bert(99), settings).unwrap();
        let (bytes, shape) = (encoded(rows), [rows.len() as i64, 1]);
        let input = Input { name: "TEXT", shape: &shape, bytes: &bytes };
        batch.add(settings, &encoder, &[input], proceed)
    }

    fn answers(settings: &Settings, requests: &[&[&str]]) -> Vec<Answer> {
        let mut batch = Batch::new(&Encoder::new(bert(99), settings).unwrap());
        let added = requests.iter().map(|rows| add(&mut batch, settings, rows, || Ok(())));
        let spans = added.collect();
        batch.answers(settings, spans)
    }

    fn widths(settings: &Settings) -> Vec<usize> {
        let requests: [&[&str]; 2] = [&["fox", ""], &["the fox the fox the fox the fox"]];
        answers(settings, &requests).into_iter().map(|answer| answer.unwrap().1).collect()
    }

    #[test]
    fn each_padding_has_its_widths() {
        use Truncation::LongestFirst;
        assert_eq!(widths(&settings(Padding::Ragged, LongestFirst)), [3, 8]);
        assert_eq!(widths(&settings(Padding::Bucketed, LongestFirst)), [4, 8]);
        assert_eq!(widths(&settings(Padding::Fixed, LongestFirst)), [8, 8]);
        assert_eq!(widths(&settings(Padding::Longest, LongestFirst)), [8, 8]);
    }

    #[test]
    fn a_bad_request_leaves_no_rows() {
        let settings = settings(Padding::Longest, Truncation::Refuse);
        let requests: [&[&str]; 3] =
            [&["fox"], &["fox", "the fox the fox the fox the"], &["", "fox"]];
        let [good, bad, last] = answers(&settings, &requests).try_into().unwrap();
        assert_eq!(good.unwrap(), (Span { row: 0, rows: 1, token: 0 }, 3));
        assert_eq!(
            bad.unwrap_err().message,
            "row 1 of TEXT has 9 tokens, but at most 8 tokens are allowed; shorten the text"
        );
        assert_eq!(last.unwrap(), (Span { row: 1, rows: 2, token: 3 }, 3));
    }

    #[test]
    fn a_request_ends_at_the_row_before_which_it_is_cancelled() {
        let settings = settings(Padding::Ragged, Truncation::LongestFirst);
        let mut batch = Batch::new(&Encoder::new(bert(99), &settings).unwrap());
        let calls = std::cell::Cell::new(0);
        let proceed = || {
            calls.set(calls.get() + 1);
            if calls.get() == 2 { Err(Refusal::cancelled()) } else { Ok(()) }
        };
        let added = add(&mut batch, &settings, &["fox", "the", "fox"], proceed);
        assert_eq!((added, calls.get()), (Err(Refusal::cancelled()), 2));
        assert_eq!(batch.columns.tokens, 0);
    }

    #[test]
    fn a_long_row_makes_no_other_request_too_large() {
        let mut settings = settings(Padding::Longest, Truncation::LongestFirst);
        settings.max_length = Some(2_000_000);
        let row = "a,".repeat(MOST_ROW_BYTES / 2);
        let requests: [&[&str]; 3] = [&["fox"; 40], &[&row], &["the fox"]];
        let widths: Vec<usize> =
            answers(&settings, &requests).into_iter().map(|answer| answer.unwrap().1).collect();
        assert_eq!(widths, [3, MOST_ROW_BYTES + 2, MOST_ROW_BYTES + 2]);
    }

    #[test]
    fn the_memory_of_a_large_batch_is_released() {
        let kinds = [Kind::TokenTypeIds, Kind::SpecialTokensMask, Kind::Offsets, Kind::Lengths];
        for kind in kinds {
            let mut settings = settings(Padding::Ragged, Truncation::LongestFirst);
            settings.outputs[0].kind = kind;
            let mut batch = Batch::new(&Encoder::new(bert(99), &settings).unwrap());
            add(&mut batch, &settings, &vec![""; KEPT_TOKENS + 1], || Ok(())).unwrap();
            assert!(batch.columns.capacity() > KEPT_TOKENS);
            batch.clear();
            assert_eq!(batch.columns.capacity(), 0, "{kind:?}");
            add(&mut batch, &settings, &["fox"], || Ok(())).unwrap();
            batch.clear();
            assert!(batch.columns.capacity() > 0, "{kind:?}");
        }
    }

    #[test]
    fn a_panic_is_the_error_of_one_request() {
        let settings = settings(Padding::Longest, Truncation::LongestFirst);
        let mut batch = Batch::new(&Encoder::new(bert(99), &settings).unwrap());
        batch.columns.lengths.push(3);
        let spans = [(0, 1), (7, 1)].map(|(row, rows)| Ok(Span { row, rows, token: 0 }));
        let [good, bad] = batch.answers(&settings, spans.into()).try_into().unwrap();
        assert_eq!(good.unwrap().1, 3);
        let bad = bad.unwrap_err();
        assert_eq!(bad.blame, Blame::Tokenizer);
        assert!(bad.message.starts_with("the tokenizer failed on this request: "), "{bad:?}");
    }

    #[test]
    fn answers_have_a_limit() {
        let mut settings = settings(Padding::Fixed, Truncation::LongestFirst);
        settings.max_length = Some(MOST_BYTES / 8);
        assert!(answers(&settings, &[&["fox"]])[0].is_ok());
        let refused = answers(&settings, &[&["fox", ""]]);
        assert!(refused[0].as_ref().unwrap_err().message.contains("than the 256 MiB"));
    }

    #[test]
    fn rows_end_where_the_response_would_be_too_large() {
        let mut settings = settings(Padding::Ragged, Truncation::LongestFirst);
        settings.max_length = Some(2_000_000);
        let mask = |number| Output {
            name: format!("mask{number}"),
            kind: Kind::AttentionMask,
            integer: Integer::Int64,
        };
        settings.outputs = (0..64).map(mask).collect();
        let row = "a,".repeat(MOST_ROW_BYTES / 8);
        let refused = answers(&settings, &[&["fox"], &[row.as_str(); 9]]);
        assert!(refused[0].is_ok());
        let message = &refused[1].as_ref().unwrap_err().message;
        assert!(message.starts_with("2 rows with 524292 tokens need more"), "{message}");
    }

    #[test]
    fn large_rows_are_named() {
        let settings = settings(Padding::Ragged, Truncation::LongestFirst);
        let refused = answers(&settings, &[&["fox", &"a".repeat(MOST_ROW_BYTES + 1)]]);
        assert_eq!(
            refused[0].as_ref().unwrap_err().message,
            "row 1 of TEXT is larger than the 1048576 bytes allowed; shorten the text"
        );
    }
}
