//! Refuses tokenizers that the library cannot run safely with the settings of a model.

use tokenizers::{ModelWrapper, NormalizedString, Normalizer, Tokenizer};

use crate::settings::{Integer, Kind, Output, Settings};

/// Most characters of a word that WordPiece looks up. The time for a word grows with the square of
/// its length.
const MOST_WORD_CHARS: usize = 1_000;

/// Checks a tokenizer before it encodes any text.
///
/// # Errors
/// The reason why it cannot be used.
pub fn check(tokenizer: &Tokenizer, settings: &Settings) -> Result<(), String> {
    check_added_tokens(tokenizer)?;
    check_word_length(tokenizer)?;
    check_ids(tokenizer, settings)
}

/// Refuses added tokens of which the normalizer leaves nothing: the library would find the empty
/// text without end, and allocate memory for each match.
fn check_added_tokens(tokenizer: &Tokenizer) -> Result<(), String> {
    let Some(normalizer) = tokenizer.get_normalizer() else { return Ok(()) };
    for token in tokenizer.get_added_tokens_decoder().values().filter(|token| token.normalized) {
        let mut text = NormalizedString::from(token.content.as_str());
        normalizer.normalize(&mut text).map_err(|error| error.to_string())?;
        if text.get().is_empty() {
            return Err(format!(
                "its normalizer turns the added token {:?} into an empty text; remove the token \
                 from added_tokens, or set \"normalized\": false for it",
                token.content
            ));
        }
    }
    Ok(())
}

fn check_word_length(tokenizer: &Tokenizer) -> Result<(), String> {
    match tokenizer.get_model() {
        ModelWrapper::WordPiece(model) if model.max_input_chars_per_word > MOST_WORD_CHARS => {
            Err(format!(
                "its model sets max_input_chars_per_word to {}, more than the {MOST_WORD_CHARS} \
                 allowed; set it to at most {MOST_WORD_CHARS}",
                model.max_input_chars_per_word
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses token IDs that an output of 32 bits cannot carry.
fn check_ids(tokenizer: &Tokenizer, settings: &Settings) -> Result<(), String> {
    let narrow =
        |output: &&Output| (output.kind, output.integer) == (Kind::InputIds, Integer::Int32);
    let Some(output) = settings.outputs.iter().find(narrow) else { return Ok(()) };
    let padding = tokenizer.get_padding().map(|padding| padding.pad_id);
    let highest = tokenizer.get_vocab(true).into_values().chain(padding).max().unwrap_or(0);
    if i32::try_from(highest).is_err() {
        return Err(format!(
            "its vocabulary contains the id {highest}, but the output {} has TYPE_INT32, which \
             ends at {}; use a vocabulary with lower ids, or TYPE_INT64",
            output.name,
            i32::MAX
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokenizers::models::wordlevel::WordLevel;
    use tokenizers::models::wordpiece::WordPiece;
    use tokenizers::normalizers::Strip;
    use tokenizers::{AddedToken, PaddingParams};

    use super::*;
    use crate::encoder::Encoder;
    use crate::encoder::tests::settings;
    use crate::words::tests::bert;

    /// Returns why an encoder of single texts refuses the tokenizer.
    fn refused(tokenizer: Tokenizer, kind: Kind, integer: Integer) -> Option<String> {
        let mut settings = settings(&[kind], &["TEXT"], 7);
        settings.outputs[0].integer = integer;
        Encoder::new(tokenizer, &settings).err()
    }

    #[test]
    fn added_tokens_that_the_normalizer_empties_are_refused() {
        let stripped = |normalized: bool| {
            let mut tokenizer = bert(99);
            tokenizer.with_normalizer(Some(Strip::new(true, true))).unwrap();
            let empty = AddedToken::from("\n", false).normalized(normalized);
            tokenizer.add_tokens([empty, AddedToken::from("covid", false)]).unwrap();
            refused(tokenizer, Kind::InputIds, Integer::Int64)
        };
        assert_eq!(
            stripped(true).as_deref(),
            Some(
                "its normalizer turns the added token \"\\n\" into an empty text; remove the token from \
                 added_tokens, or set \"normalized\": false for it"
            )
        );
        assert_eq!(stripped(false), None);
    }

    #[test]
    fn long_words_of_wordpiece_are_refused() {
        let longest = |characters: usize| {
            let words = [("[UNK]".to_owned(), 0)].into_iter().collect::<ahash::AHashMap<_, _>>();
            let model = WordPiece::builder().vocab(words).max_input_chars_per_word(characters);
            refused(Tokenizer::new(model.build().unwrap()), Kind::InputIds, Integer::Int64)
        };
        assert_eq!(longest(MOST_WORD_CHARS), None);
        assert_eq!(
            longest(MOST_WORD_CHARS + 1).as_deref(),
            Some(
                "its model sets max_input_chars_per_word to 1001, more than the 1000 allowed; set it \
                 to at most 1000"
            )
        );
    }

    #[test]
    fn ids_that_do_not_fit_into_the_output_are_refused() {
        let highest = |id: u32, pad_id: u32, kind, integer| {
            let words = [("a".to_owned(), id)].into_iter().collect::<ahash::AHashMap<_, _>>();
            let model = WordLevel::builder().vocab(words).unk_token("a".into()).build().unwrap();
            let mut tokenizer = Tokenizer::new(model);
            tokenizer.with_padding(Some(PaddingParams { pad_id, ..Default::default() }));
            refused(tokenizer, kind, integer)
        };
        let most = i32::MAX as u32;
        assert_eq!(highest(most, most, Kind::InputIds, Integer::Int32), None);
        assert_eq!(highest(u32::MAX, u32::MAX, Kind::InputIds, Integer::Int64), None);
        assert_eq!(highest(u32::MAX, 0, Kind::Lengths, Integer::Int32), None);
        let expected = "its vocabulary contains the id 2147483648, but the output InputIds has \
                        TYPE_INT32, which ends at 2147483647; use a vocabulary with lower ids, or \
                        TYPE_INT64";
        for (id, pad_id) in [(most + 1, 0), (0, most + 1)] {
            let refused = highest(id, pad_id, Kind::InputIds, Integer::Int32);
            assert_eq!(refused.as_deref(), Some(expected));
        }
    }
}
