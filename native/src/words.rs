//! A bounded word cache: it returns the token IDs of texts whose words have been seen before.
//!
//! A tokenizer such as BERT's encodes each word independently, so the IDs of a text are those of
//! its words in order. The components of a tokenizer show whether it works in this way, and sample
//! texts verify it when the model loads.

use std::collections::HashMap;

use ahash::RandomState;
use tokenizers::{
    AddedToken, Encoding, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Tokenizer,
};

/// Words of one generation; a memory has two, some 5 MB in all and 25 MB at worst.
const GENERATION_WORDS: usize = 32_768;
/// Characters of a word that is kept.
const LONGEST_WORD: usize = 32;
/// The library tokenizes a whole text if more than one of so many words is new.
const KNOWN_PER_NEW: usize = 5;
/// New words that are learned from a text that the library tokenizes.
const LEARNED_PER_ROW: usize = 4;
/// Words that are learned so before any text was answered from memory.
const CREDIT: usize = 8_192;

/// Texts on which the memory must agree with the library.
const PROBES: [&str; 17] = [
    "",
    " ",
    "a",
    "Hello, world!",
    "two  spaces ",
    " before",
    "tab\tline\nbreak\r\n",
    "don't can't",
    "e-mail: a.b@c.de",
    "[CLS] [SEP][PAD] [UNK]",
    "Ünïcödé Straße ΑΣ",
    "cafe\u{301} \u{301}x",
    "中文 字符 mixed中文",
    "a\u{a0}b\u{2003}c\u{200b}d\u{3000}e",
    "\0\u{1f}\u{7f} \u{fffd}",
    "🙂 👩\u{200d}👩\u{200d}👧",
    "[SEP]x <s> </s> <pad>",
];

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// What is the same for every text of a tokenizer that works word by word.
#[derive(Clone, Debug)]
pub struct WordRules {
    special_tokens: bool,
    before: Vec<u32>,
    after: Vec<u32>,
    /// Most tokens of a text between those; `None` for no limit.
    room: Option<usize>,
}

impl WordRules {
    /// Returns the rules for single texts.
    ///
    /// `None` for a tokenizer whose IDs of a text may differ from those of its words. `tokenizer`
    /// does not pad, and cuts at `max_length`.
    pub fn of(
        tokenizer: &Tokenizer,
        special_tokens: bool,
        max_length: Option<usize>,
    ) -> Option<Self> {
        if !works_by_word(tokenizer) {
            return None;
        }
        let whole = tokenizer.encode("a", special_tokens).ok()?;
        let special = whole.get_special_tokens_mask();
        let begin = special.iter().position(|mark| *mark == 0)?;
        let end = special.iter().rposition(|mark| *mark == 0)? + 1;
        let before = whole.get_ids()[..begin].to_vec();
        let after = whole.get_ids()[end..].to_vec();
        let room = max_length.map(|most| most.saturating_sub(before.len() + after.len()));
        let rules = Self { special_tokens, before, after, room };
        rules.agree_with(tokenizer).then_some(rules)
    }

    fn agree_with(&self, tokenizer: &Tokenizer) -> bool {
        let long = "x".repeat(300);
        PROBES.iter().copied().chain([long.as_str()]).all(|probe| {
            let Ok(expected) = tokenizer.encode_fast(probe, self.special_tokens) else {
                return false;
            };
            let mut memory = WordMemory::new(self.clone());
            let mut ids = Vec::new();
            memory.by_words(tokenizer, probe, &mut ids).is_ok()
                && ids == expected.get_ids()
                && expected.get_type_ids().iter().all(|kind| *kind == 0)
        })
    }
}

fn works_by_word(tokenizer: &Tokenizer) -> bool {
    let normalizer = matches!(
        tokenizer.get_normalizer(),
        None | Some(NormalizerWrapper::BertNormalizer(_) | NormalizerWrapper::Lowercase(_))
    );
    let splitter = matches!(
        tokenizer.get_pre_tokenizer(),
        Some(
            PreTokenizerWrapper::BertPreTokenizer(_)
                | PreTokenizerWrapper::Whitespace(_)
                | PreTokenizerWrapper::WhitespaceSplit(_)
        )
    );
    let model =
        matches!(tokenizer.get_model(), ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_));
    let template = matches!(
        tokenizer.get_post_processor(),
        None | Some(PostProcessorWrapper::Template(_) | PostProcessorWrapper::Bert(_))
    );
    let added = !tokenizer.get_added_tokens_decoder().values().any(crosses);
    normalizer && splitter && model && template && added && has_unknown_token(tokenizer)
}

/// Whether an added token may reach over a space, or be looked for in the normalized text.
fn crosses(token: &AddedToken) -> bool {
    let marks = token.normalized || token.lstrip || token.rstrip || token.single_word;
    marks || token.content.contains(' ')
}

/// Whether no text is an error, so that the end of a text that is cut need not be looked at.
fn has_unknown_token(tokenizer: &Tokenizer) -> bool {
    let name = match tokenizer.get_model() {
        ModelWrapper::WordPiece(model) => &model.unk_token,
        ModelWrapper::WordLevel(model) => &model.unk_token,
        _ => return false,
    };
    // Without the added tokens: the model itself has to know it.
    tokenizer.get_vocab(false).contains_key(name)
}

/// Words of about the same age with their IDs.
#[derive(Default)]
struct Generation {
    places: HashMap<Box<str>, (u32, u32), RandomState>,
    ids: Vec<u32>,
}

impl Generation {
    fn get(&self, word: &str) -> Option<&[u32]> {
        let (begin, end) = *self.places.get(word)?;
        Some(&self.ids[begin as usize..end as usize])
    }

    fn insert(&mut self, word: &str, ids: &[u32]) {
        let begin = self.ids.len() as u32;
        self.ids.extend_from_slice(ids);
        self.places.insert(word.into(), (begin, self.ids.len() as u32));
    }
}

/// The words of one instance.
pub struct WordMemory {
    rules: WordRules,
    young: Generation,
    old: Generation,
    credit: usize,
    generation_words: usize,
}

/// Result of looking up the words of a text.
enum Lookup {
    Complete,
    /// Number of new words, and number of all words.
    Missing(usize, usize),
}

impl WordMemory {
    /// Returns an empty memory.
    pub fn new(rules: WordRules) -> Self {
        Self {
            rules,
            young: Generation::default(),
            old: Generation::default(),
            credit: CREDIT,
            generation_words: GENERATION_WORDS,
        }
    }

    /// Appends the IDs of a text, special tokens included.
    ///
    /// # Errors
    /// What the library says of the text.
    pub fn encode(
        &mut self,
        tokenizer: &Tokenizer,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), Fault> {
        let start = ids.len();
        if let Lookup::Missing(new, words) = self.look_up(text, ids) {
            ids.truncate(start);
            if new * KNOWN_PER_NEW <= words {
                self.by_words(tokenizer, text, ids)?;
            } else {
                let whole = tokenizer.encode_fast(text, self.rules.special_tokens)?;
                ids.extend_from_slice(whole.get_ids());
                self.learn_some(tokenizer, text)?;
                return Ok(());
            }
        }
        self.credit = CREDIT.min(self.credit + 1);
        Ok(())
    }

    fn look_up(&mut self, text: &str, ids: &mut Vec<u32>) -> Lookup {
        ids.extend_from_slice(&self.rules.before);
        let start = ids.len();
        let enough = self.rules.room;
        let (mut words, mut new) = (0, 0);
        for word in text.split(' ') {
            words += 1;
            match self.get(word) {
                Some(known) if new == 0 => ids.extend_from_slice(known),
                Some(_) => {}
                None => new += 1,
            }
            if new == 0 && enough.is_some_and(|room| ids.len() - start >= room) {
                break;
            }
        }
        if new > 0 {
            return Lookup::Missing(new, words);
        }
        self.close(start, ids);
        Lookup::Complete
    }

    /// Puts a text together from its words and learns the new ones.
    fn by_words(
        &mut self,
        tokenizer: &Tokenizer,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), Fault> {
        ids.extend_from_slice(&self.rules.before);
        let start = ids.len();
        let enough = self.rules.room;
        for word in text.split(' ') {
            if let Some(known) = self.get(word) {
                ids.extend_from_slice(known);
            } else {
                let made = tokenizer.encode_fast(word, false)?;
                ids.extend_from_slice(made.get_ids());
                self.keep(word, &made);
            }
            if enough.is_some_and(|room| ids.len() - start >= room) {
                break;
            }
        }
        self.close(start, ids);
        Ok(())
    }

    fn close(&self, start: usize, ids: &mut Vec<u32>) {
        if let Some(room) = self.rules.room {
            ids.truncate(start + room);
        }
        ids.extend_from_slice(&self.rules.after);
    }

    fn learn_some(&mut self, tokenizer: &Tokenizer, text: &str) -> Result<(), Fault> {
        let mut learned = 0;
        for word in text.split(' ') {
            if learned == LEARNED_PER_ROW || self.credit == 0 {
                break;
            }
            if is_short(word) && self.get(word).is_none() {
                let made = tokenizer.encode_fast(word, false)?;
                self.keep(word, &made);
                self.credit -= 1;
                learned += 1;
            }
        }
        Ok(())
    }

    fn get(&mut self, word: &str) -> Option<&[u32]> {
        if let Some((begin, end)) = self.young.places.get(word).copied() {
            return Some(&self.young.ids[begin as usize..end as usize]);
        }
        let known = self.old.get(word)?;
        self.young.insert(word, known);
        self.age();
        self.young.get(word).or_else(|| self.old.get(word))
    }

    fn keep(&mut self, word: &str, made: &Encoding) {
        if is_short(word) {
            self.young.insert(word, made.get_ids());
            self.age();
        }
    }

    /// Forgets the old words when there are enough young ones.
    fn age(&mut self) {
        if self.young.places.len() >= self.generation_words {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

fn is_short(word: &str) -> bool {
    word.len() <= LONGEST_WORD
        || (word.len() <= 4 * LONGEST_WORD && word.chars().count() <= LONGEST_WORD)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tokenizers::models::wordpiece::WordPiece;
    use tokenizers::normalizers::BertNormalizer;
    use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
    use tokenizers::processors::bert::BertProcessing;
    use tokenizers::{TruncationParams, TruncationStrategy};

    pub(crate) fn bert(max_length: usize) -> Tokenizer {
        let letters = ('a'..='z').flat_map(|letter| [letter.to_string(), format!("##{letter}")]);
        let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(str::to_owned);
        let words = ["the", "fox", ",", "!"].map(str::to_owned);
        let all = special.into_iter().chain(words).chain(letters);
        let vocabulary = all
            .enumerate()
            .map(|(id, token)| (token, id as u32))
            .collect::<ahash::AHashMap<_, _>>();
        let model =
            WordPiece::builder().vocab(vocabulary).unk_token("[UNK]".into()).build().unwrap();
        let mut made = Tokenizer::new(model);
        made.with_normalizer(Some(BertNormalizer::default())).unwrap();
        made.with_pre_tokenizer(Some(BertPreTokenizer));
        made.with_post_processor(Some(BertProcessing::new(
            ("[SEP]".into(), 3),
            ("[CLS]".into(), 2),
        )));
        made.with_truncation(Some(TruncationParams {
            max_length,
            strategy: TruncationStrategy::LongestFirst,
            ..Default::default()
        }))
        .unwrap();
        made
    }

    fn memory(tokenizer: &Tokenizer, max_length: usize) -> WordMemory {
        WordMemory::new(WordRules::of(tokenizer, true, Some(max_length)).unwrap())
    }

    #[test]
    fn known_and_new_words_give_the_ids_of_the_library() {
        let tokenizer = bert(12);
        let mut memory = memory(&tokenizer, 12);
        let texts = [
            "",
            " ",
            "the fox",
            "the  fox ",
            "the quick fox",
            "été,the!fox",
            "日本 fox",
            "the fox the fox the fox the fox the quick fox",
        ];
        for text in texts.iter().chain(&texts) {
            let mut ids = vec![7];
            memory.encode(&tokenizer, text, &mut ids).unwrap();
            assert_eq!(ids[1..], *tokenizer.encode(*text, true).unwrap().get_ids(), "{text}");
        }
        assert!(memory.young.places.contains_key("quick"));
    }

    #[test]
    fn the_memory_is_bounded_and_keeps_what_is_used() {
        let tokenizer = bert(64);
        let mut memory = memory(&tokenizer, 64);
        memory.generation_words = 8;
        let mut ids = Vec::new();
        for number in 0..40u32 {
            let word = |place: u32| char::from(b'a' + ((number / place) % 26) as u8);
            let text = format!("the fox the fox the fox the fox the fox {}{}", word(26), word(1));
            memory.encode(&tokenizer, &text, &mut ids).unwrap();
            assert!(memory.young.places.len() <= 8 && memory.old.places.len() <= 8);
        }
        assert!(memory.get("the").is_some() && memory.get("aa").is_none());
        memory
            .encode(&tokenizer, &format!("the fox the fox the {}", "x".repeat(33)), &mut ids)
            .unwrap();
        assert!(memory.get(&"x".repeat(33)).is_none());
    }

    #[test]
    fn words_that_never_come_again_soon_cost_no_learning() {
        let tokenizer = bert(64);
        let mut memory = memory(&tokenizer, 64);
        memory.credit = 6;
        let mut ids = Vec::new();
        for text in ["qa qb qc qd qe", "ra rb rc rd re", "sa sb sc sd se"] {
            memory.encode(&tokenizer, text, &mut ids).unwrap();
        }
        assert_eq!((memory.young.places.len(), memory.credit), (6, 0));
    }

    #[test]
    fn other_tokenizers_have_no_memory() {
        let mut tokenizer = bert(12);
        tokenizer.with_pre_tokenizer(None::<BertPreTokenizer>);
        assert!(WordRules::of(&tokenizer, true, Some(12)).is_none());
        let mut tokenizer = bert(12);
        tokenizer.add_tokens([AddedToken::from("new york", false)]).unwrap();
        assert!(WordRules::of(&tokenizer, true, Some(12)).is_none());
        // Without an unknown token, the end of a text that is cut may still be an error.
        let mut tokenizer = bert(12);
        tokenizer.with_model(WordPiece::default());
        assert!(!works_by_word(&tokenizer));
    }
}
