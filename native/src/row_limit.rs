//! The limit of a row's size after normalization, and how much a normalizer can add to a text.

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizerWrapper, Tokenizer};

use crate::encoder::{Row, RowError};

/// Most bytes of a row after normalization. The library needs about 160 times as many bytes of memory
/// while it tokenizes a text, and up to three times that if it cuts the text into tiny parts.
pub const MOST_ROW_BYTES: usize = 1 << 20;
/// Most times that a normalizer may lengthen a text. Those of published tokenizers stay below 1,200.
const MOST_FACTOR: f64 = 4096.0;

/// Most `ByteLevel` of a pre-tokenizer. Each can double a text, after its size was checked.
const MOST_BYTE_LEVELS: usize = 2;

/// A bound of the length of a normalized text: `factor * bytes + added`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Growth {
    factor: f64,
    added: f64,
}

impl Growth {
    const NONE: Self = Self { factor: 1.0, added: 0.0 };

    fn times(factor: f64) -> Self {
        Self { factor: factor.max(1.0), added: 0.0 }
    }

    /// Returns the growth of this normalizer and a later one.
    fn then(self, next: Self) -> Self {
        Self { factor: self.factor * next.factor, added: self.added * next.factor + next.added }
    }
}

/// The limit for the rows of one tokenizer.
#[derive(Debug)]
pub struct RowLimit {
    /// Bytes of a row that no normalization makes longer than [`MOST_ROW_BYTES`].
    surely_short: usize,
}

impl RowLimit {
    /// Returns the limit for a tokenizer.
    ///
    /// # Errors
    /// Its normalizer or pre-tokenizer can make texts too long.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self, String> {
        let levels = tokenizer.get_pre_tokenizer().map_or(0, byte_levels);
        if levels > MOST_BYTE_LEVELS {
            return Err(format!(
                "its pre_tokenizer contains {levels} ByteLevel, each of which can double a text, \
                 more than the {MOST_BYTE_LEVELS} allowed; keep only one"
            ));
        }
        let Some(normalizer) = tokenizer.get_normalizer() else {
            return Ok(Self { surely_short: MOST_ROW_BYTES });
        };
        let growth = growth(normalizer)?;
        if growth.factor > MOST_FACTOR {
            return Err(format!(
                "its normalizer can make a text {:.0} times as long, more than the {MOST_FACTOR} \
                 times allowed; shorten the content of Replace or Prepend, or use fewer normalizers",
                growth.factor
            ));
        }
        let surely_short = (MOST_ROW_BYTES as f64 - growth.added) / growth.factor;
        Ok(Self { surely_short: surely_short as usize })
    }

    /// Refuses a row whose tokens would need too much memory.
    ///
    /// # Errors
    /// The row is larger than [`MOST_ROW_BYTES`], or cannot be normalized.
    pub fn check(&self, tokenizer: &Tokenizer, row: Row<'_>) -> Result<(), RowError> {
        let texts = [row.0, row.1.unwrap_or("")];
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        if bytes > MOST_ROW_BYTES {
            return Err(RowError::TooLarge);
        }
        if tokenizer.get_normalizer().is_none() || bytes <= self.surely_short {
            return Ok(());
        }
        let mut room = MOST_ROW_BYTES;
        for text in texts {
            room = self.room_after(tokenizer, text, room)?;
        }
        Ok(())
    }

    /// Returns the bytes that are left of `room` after a normalized text.
    ///
    /// Parts of the text are normalized in turn to bound the memory. As when the library encodes it,
    /// an added token ends a text, and the rest is normalized on its own.
    fn room_after(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        room: usize,
    ) -> Result<usize, RowError> {
        let (mut room, mut rest) = (room, text);
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(self.part_end(rest));
            let normalizer = tokenizer.get_normalizer();
            let part = tokenizer.get_added_vocabulary().extract_and_normalize(normalizer, part);
            let texts = part.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
            let bytes = texts.iter().map(|(text, ..)| text.len()).sum();
            room = room.checked_sub(bytes).ok_or(RowError::TooLarge)?;
            rest = behind;
        }
        Ok(room)
    }

    /// Returns the end of the first part of a text, at most [`Self::surely_short`] bytes on.
    fn part_end(&self, text: &str) -> usize {
        let end = self.surely_short.min(text.len());
        (0..=end).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(end)
    }
}

fn byte_levels(pre_tokenizer: &PreTokenizerWrapper) -> usize {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => 1,
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().map(byte_levels).sum(),
        _ => 0,
    }
}

fn growth(normalizer: &NormalizerWrapper) -> Result<Growth, String> {
    use NormalizerWrapper::{
        BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend,
        Replace, Sequence, StripAccents, StripNormalizer,
    };
    Ok(match normalizer {
        Nmt(_) | StripAccents(_) | StripNormalizer(_) => Growth::NONE,
        Lowercase(_) => Growth::times(1.5),
        ByteLevel(_) => Growth::times(2.0),
        NFC(_) | NFD(_) => Growth::times(3.0),
        NFKC(_) | NFKD(_) => Growth::times(11.0),
        // Spaces around Chinese characters (5 bytes of 3), NFD and lower case.
        BertNormalizer(_) => Growth::times(5.0 / 3.0 * 3.0 * 1.5),
        // Once for each part of a text between added tokens.
        Prepend(prepend) => Growth::times(1.0 + prepend.prepend.len() as f64),
        Sequence(sequence) => sequence
            .as_ref()
            .iter()
            .try_fold(Growth::NONE, |before, next| growth(next).map(|next| before.then(next)))?,
        Replace(_) | Precompiled(_) => {
            let saved = serde_json::to_value(normalizer).map_err(|error| error.to_string())?;
            if matches!(normalizer, Replace(_)) { replaced(&saved) } else { mapped(&saved)? }
        }
    })
}

/// Returns the growth of a `Replace`. A regular expression can match at each byte without taking it.
fn replaced(saved: &serde_json::Value) -> Growth {
    let content = saved["content"].as_str().unwrap_or_default().len() as f64;
    match saved["pattern"]["String"].as_str() {
        Some(text) if !text.is_empty() => Growth::times(content / text.len() as f64),
        _ => Growth { factor: 1.0 + content, added: content },
    }
}

/// Returns the growth of a `Precompiled`: at least a byte becomes its longest replacement.
///
/// The map has the size of a trie in 4 bytes, the trie, and the replacements, each with a NUL.
fn mapped(saved: &serde_json::Value) -> Result<Growth, String> {
    let text = saved["precompiled_charsmap"].as_str().unwrap_or_default();
    let map = base64::decode(text).map_err(|error| format!("its character map: {error}"))?;
    let trie = map.first_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
    let replacements = map.get(trie.saturating_add(4)..).unwrap_or(&[]);
    let longest = replacements.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    Ok(Growth::times(longest as f64))
}

#[cfg(test)]
mod tests {
    use tokenizers::models::wordlevel::WordLevel;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::{AddedToken, NormalizedString, Normalizer};

    use super::*;

    fn with(normalizer: &str) -> Tokenizer {
        let mut tokenizer = Tokenizer::new(WordLevel::default());
        let normalizer: NormalizerWrapper = serde_json::from_str(normalizer).unwrap();
        tokenizer.with_normalizer(Some(normalizer)).unwrap();
        tokenizer
    }

    fn replace(pattern: &str, content: &str) -> String {
        serde_json::json!({
            "type": "Replace", "pattern": {"String": pattern}, "content": content
        })
        .to_string()
    }

    fn check(normalizer: &str, text: &str) -> Result<(), RowError> {
        let tokenizer = with(normalizer);
        RowLimit::of(&tokenizer).unwrap().check(&tokenizer, (text, None))
    }

    fn bound(normalizer: &str) -> Growth {
        growth(with(normalizer).get_normalizer().unwrap()).unwrap()
    }

    #[test]
    fn a_short_text_with_long_replacements_is_refused() {
        let longer = replace(" ", &"x".repeat(100));
        assert_eq!(check(&longer, &" ".repeat(MOST_ROW_BYTES / 100)), Ok(()));
        assert_eq!(check(&longer, &" ".repeat(MOST_ROW_BYTES / 90)), Err(RowError::TooLarge));
        let each = r#"{"type": "Replace", "pattern": {"Regex": "(?=a)"}, "content": "0123456789"}"#;
        assert_eq!(check(each, &"a".repeat(MOST_ROW_BYTES / 11)), Ok(()));
        assert_eq!(check(each, &"a".repeat(MOST_ROW_BYTES / 10)), Err(RowError::TooLarge));
        let none = check(&longer, &"a".repeat(MOST_ROW_BYTES));
        assert_eq!(none, Ok(()), "what is not replaced does not count");
    }

    #[test]
    fn both_texts_of_a_pair_count() {
        let tokenizer = with(&replace(" ", "123"));
        let (limit, half) = (RowLimit::of(&tokenizer).unwrap(), " ".repeat(MOST_ROW_BYTES / 6));
        assert_eq!(limit.check(&tokenizer, (&half, Some(&half))), Ok(()));
        let both = limit.check(&tokenizer, (&half, Some(&format!("{half}   "))));
        assert_eq!(both, Err(RowError::TooLarge));
    }

    #[test]
    fn normalizers_that_lengthen_texts_too_much_are_refused() {
        let refused = RowLimit::of(&with(&replace(" ", &"x".repeat(5_000)))).unwrap_err();
        assert_eq!(
            refused,
            "its normalizer can make a text 5000 times as long, more than the 4096 times allowed; \
             shorten the content of Replace or Prepend, or use fewer normalizers"
        );
        let twice = replace("a", "aa");
        let nested = |times| {
            format!(
                r#"{{"type": "Sequence", "normalizers": [{}]}}"#,
                vec![&*twice; times].join(",")
            )
        };
        assert!(RowLimit::of(&with(&nested(12))).is_ok());
        assert!(RowLimit::of(&with(&nested(13))).unwrap_err().contains("8192 times"));
        let prepend =
            |bytes| format!(r#"{{"type": "Prepend", "prepend": "{}"}}"#, "x".repeat(bytes));
        assert!(RowLimit::of(&with(&prepend(4_095))).is_ok());
        assert!(RowLimit::of(&with(&prepend(4_096))).unwrap_err().contains("4097 times"));
    }

    #[test]
    fn growths_are_multiplied_in_a_sequence() {
        let sequence = r#"{"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "ab"}, {"type": "NFKC"}, {"type": "ByteLevel"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "__"}]}"#;
        assert_eq!(bound(sequence), Growth { factor: 198.0, added: 2.0 });
    }

    #[test]
    fn prepended_text_counts_for_each_part_between_added_tokens() {
        let prepend = format!(r#"{{"type": "Prepend", "prepend": "{}"}}"#, "x".repeat(99));
        let mut tokenizer = with(&prepend);
        tokenizer.add_special_tokens([AddedToken::from("<s>", true)]).unwrap();
        let limit = RowLimit::of(&tokenizer).unwrap();
        let check = |text: &str| limit.check(&tokenizer, (text, None));
        assert_eq!(check(&"a".repeat(MOST_ROW_BYTES / 2)), Ok(()));
        assert_eq!(check(&"<s>a".repeat(MOST_ROW_BYTES / 104)), Ok(()));
        assert_eq!(check(&"<s>a".repeat(MOST_ROW_BYTES / 102)), Err(RowError::TooLarge));
    }

    #[test]
    fn many_byte_levels_of_a_pre_tokenizer_are_refused() {
        let bytes = || PreTokenizerWrapper::ByteLevel(ByteLevel::default());
        let refused = |levels: usize| {
            let inner = Sequence::new((0..levels - 1).map(|_| bytes()).collect());
            let mut tokenizer = Tokenizer::new(WordLevel::default());
            tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![bytes(), inner.into()])));
            RowLimit::of(&tokenizer).err()
        };
        assert_eq!(refused(MOST_BYTE_LEVELS), None);
        assert_eq!(
            refused(MOST_BYTE_LEVELS + 1).as_deref(),
            Some(
                "its pre_tokenizer contains 3 ByteLevel, each of which can double a text, more than \
                 the 2 allowed; keep only one"
            )
        );
    }

    #[test]
    fn the_longest_replacement_of_a_character_map_counts() {
        // A trie that maps nothing, and the replacements "abc", "" and "abcde".
        let mut map = 4u32.to_le_bytes().to_vec();
        map.extend_from_slice(&[0; 4]);
        map.extend_from_slice(b"abc\0\0abcde\0");
        let saved = base64::encode(&map);
        let json = format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{saved}"}}"#);
        assert_eq!(bound(&json), Growth::times(5.0));
    }

    #[test]
    fn no_character_grows_by_more_than_its_bound() {
        for normalizer in [
            r#"{"type": "NFC"}"#,
            r#"{"type": "NFD"}"#,
            r#"{"type": "NFKC"}"#,
            r#"{"type": "NFKD"}"#,
            r#"{"type": "Lowercase"}"#,
            r#"{"type": "ByteLevel"}"#,
            r#"{"type": "Nmt"}"#,
            r#"{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true}"#,
        ] {
            let (tokenizer, bound) = (with(normalizer), bound(normalizer));
            for character in '\0'..='\u{2ffff}' {
                let mut text = NormalizedString::from(character.to_string());
                tokenizer.get_normalizer().unwrap().normalize(&mut text).unwrap();
                let (before, after) = (character.len_utf8() as f64, text.get().len() as f64);
                assert!(after <= before * bound.factor, "{normalizer} {character:?}");
            }
        }
    }
}
