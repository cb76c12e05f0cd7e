//! Where a template puts the tokens of a text or pair, and how many of a pair stay after a cut.

use tokenizers::models::wordlevel::WordLevel;
use tokenizers::{Encoding, Tokenizer};

use crate::settings::Truncation;

/// What a tokenizer makes of two texts of one token each.
pub struct PairLayout {
    /// 0 or 1 for a text's token, `None` for a special one.
    pub places: Vec<Option<usize>>,
    /// Whether the library's sequence IDs say the same.
    pub tracked: bool,
}

impl PairLayout {
    /// Returns the layout of `tokenizer`, which neither pads nor cuts.
    ///
    /// # Errors
    /// The message for the tokenizer's author: pairs cannot be made, or not be cut.
    pub fn of(tokenizer: &Tokenizer, special_tokens: bool) -> Result<Self, String> {
        let way_out = "save it with a template such as [CLS] $A [SEP] $B:1 [SEP]:1";
        let made = post_processed(tokenizer, true, special_tokens).map_err(|error| {
            format!("its post_processor does not combine two texts ({error}): {way_out}")
        })?;
        let places = places(&made);
        for (text, name) in ["first", "second"].into_iter().enumerate() {
            let times = times(&places, text);
            if times != 1 {
                return Err(format!(
                    "its post_processor inserts the {name} text {times} times, but pairs can be \
                     truncated only if each text occurs once; {way_out}, or set truncation to Refuse"
                ));
            }
        }
        let tracked = made.get_sequence_ids() == places;
        Ok(Self { places, tracked })
    }

    /// Returns the places of the special tokens, and of the first tokens of either text.
    ///
    /// `tokens` are the sizes of the two texts, `kept` how many of these stay.
    pub fn kept(&self, tokens: [usize; 2], kept: [usize; 2]) -> Vec<usize> {
        let mut places = Vec::new();
        let mut at = 0;
        for text in &self.places {
            let (size, stays) = text.map_or((1, 1), |text| (tokens[text], kept[text]));
            places.extend(at..at + stays);
            at += size;
        }
        places
    }
}

/// Refuses a tokenizer that does not insert a single text exactly once.
///
/// The library cuts a text before it inserts it, and the word cache looks at one text: rows with
/// several would be too long, or wrong. `tokenizer` neither pads nor cuts.
///
/// # Errors
/// The message for the tokenizer's author.
pub fn check_single(tokenizer: &Tokenizer, special_tokens: bool) -> Result<(), String> {
    let way_out = "save it with a template such as [CLS] $A [SEP]";
    let made = post_processed(tokenizer, false, special_tokens).map_err(|error| {
        format!("its post_processor does not process a text ({error}): {way_out}")
    })?;
    match times(&places(&made), 0) {
        1 => Ok(()),
        times => Err(format!(
            "its post_processor inserts the text {times} times, but the text must occur once; \
             {way_out}"
        )),
    }
}

/// Returns for each token the text that it is of, where text n consists of the token n.
fn places(made: &Encoding) -> Vec<Option<usize>> {
    let words = made.get_word_ids().iter().zip(made.get_ids());
    words.map(|(word, token)| word.map(|_| *token as usize)).collect()
}

fn times(places: &[Option<usize>], text: usize) -> usize {
    places.iter().filter(|place| **place == Some(text)).count()
}

/// Returns a text or pair of one token each, made with a vocabulary that knows these tokens.
fn post_processed(
    tokenizer: &Tokenizer,
    pair: bool,
    special_tokens: bool,
) -> Result<Encoding, String> {
    let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let vocabulary = [("0".to_owned(), 0), ("1".to_owned(), 1)].into_iter().collect();
        let texts = Tokenizer::new(WordLevel::builder().vocab(vocabulary).build()?);
        let [first, second] = [texts.encode("0", true)?, texts.encode("1", true)?];
        tokenizer.post_process(first, pair.then_some(second), special_tokens)
    }));
    match attempt {
        Ok(made) => made.map_err(|error| error.to_string()),
        Err(panic) => Err(crate::encoder::panic_message(panic.as_ref())),
    }
}

/// Returns the tokens that stay of either text of a pair that has more than `room`.
///
/// `None` if one of them would have none left.
pub fn shares(
    first: usize,
    second: usize,
    room: usize,
    truncation: Truncation,
) -> Option<[usize; 2]> {
    match truncation {
        Truncation::OnlyFirst => (second < room).then(|| [room - second, second]),
        Truncation::OnlySecond => (first < room).then(|| [first, room - first]),
        Truncation::LongestFirst | Truncation::Refuse => {
            let short = first.min(second).min(room / 2);
            Some(if first > second { [room - short, short] } else { [short, room - short] })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_shared_as_the_library_shares_them() {
        use Truncation::{LongestFirst, OnlyFirst, OnlySecond};
        assert_eq!(shares(9, 9, 7, LongestFirst), Some([3, 4]));
        assert_eq!(shares(9, 2, 7, LongestFirst), Some([5, 2]));
        assert_eq!(shares(2, 9, 7, LongestFirst), Some([2, 5]));
        assert_eq!(shares(10, 9, 7, LongestFirst), Some([4, 3]));
        assert_eq!(shares(9, 2, 7, OnlyFirst), Some([5, 2]));
        assert_eq!(shares(9, 7, 7, OnlyFirst), None);
        assert_eq!(shares(2, 9, 7, OnlySecond), Some([2, 5]));
        assert_eq!(shares(7, 9, 7, OnlySecond), None);
    }

    #[test]
    fn kept_places_hold_the_special_tokens() {
        let layout = PairLayout { places: vec![None, Some(0), None, Some(1), None], tracked: true };
        assert_eq!(layout.kept([3, 4], [2, 1]), [0, 1, 2, 4, 5, 9]);
    }
}
