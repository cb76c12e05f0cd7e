//! Limits of Oniguruma, the regex library in C, for the patterns of a tokenizer's file.
//!
//! Its own limits suit one pattern and a stack of 8 MiB. In a server, a stack overflow or memory
//! without a bound ends all models. A pattern that exceeds a limit is an error instead: of the load
//! if it is nested too deep, else of the row.

/// Most levels of a pattern. Oniguruma compiles groups recursively, with up to 1.5 KB of stack for
/// each level. Its own limit of 4096 needs 5.9 MB, which a thread with a smaller stack lacks.
const LEVELS: u32 = 256;
/// Most entries of the stack for one match, 40 bytes each. A pattern such as that of GPT-4o needs
/// one for each character, and a row has at most 1 048 576 characters.
const STACK_ENTRIES: u32 = 1 << 22;
/// Most backtracking steps of one search, about a second. The limit of a match alone (10 million)
/// does not bound a search, which tries to match at each character.
const SEARCH_STEPS: u64 = 20_000_000;

/// Sets the limits for this process.
pub fn set() {
    // SAFETY: each call stores a number. Patterns are compiled and searched afterwards.
    unsafe {
        onig_sys::onig_set_parse_depth_limit(LEVELS);
        onig_sys::onig_set_match_stack_limit_size(STACK_ENTRIES);
        onig_sys::onig_set_retry_limit_in_search(SEARCH_STEPS);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
    };

    use super::*;
    use crate::encoder::panic_message;

    fn compiled(pattern: &str) -> Result<Split, String> {
        set();
        let pattern = SplitPattern::Regex(pattern.into());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(|error| error.to_string())
    }

    /// Returns the number of parts, or the error of the pattern or the search.
    fn parts(pattern: &str, text: &str) -> Result<usize, String> {
        let split = compiled(pattern)?;
        catch_unwind(AssertUnwindSafe(|| {
            let mut text = PreTokenizedString::from(text);
            split.pre_tokenize(&mut text).map_err(|error| error.to_string())?;
            Ok(text.get_splits(OffsetReferential::Original, OffsetType::Byte).len())
        }))
        .unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))
    }

    fn nested(open: &str, levels: usize) -> String {
        format!("{}a{}", open.repeat(levels), ")".repeat(levels))
    }

    #[test]
    fn patterns_that_are_nested_too_deep_are_errors() {
        // The deepest patterns that are allowed fit into a small stack.
        let worker = thread::Builder::new().stack_size(512 << 10).spawn(|| {
            for open in ["(", "(?:", "(?=", "(?>", "(?~", "(?i:"] {
                assert!(compiled(&nested(open, 100)).is_ok(), "{open}");
                let refused = compiled(&nested(open, 2_000)).unwrap_err();
                assert!(refused.contains("parse depth limit over"), "{open}: {refused}");
            }
        });
        worker.unwrap().join().unwrap();
    }

    #[test]
    fn the_memory_of_a_match_is_limited() {
        let text = "a".repeat(1 << 20);
        assert_eq!(parts("(?:a|b)*", &text), Ok(1));
        let refused = parts("(?:(?:(?:(?:(?:(?:a|b)|b)|b)|b)|b)|b)*", &text).unwrap_err();
        assert!(refused.contains("match-stack limit over"), "{refused}");
    }

    #[test]
    fn the_time_of_a_search_is_limited() {
        // About 20 000 steps at each of the characters.
        let pattern = "(?:a|aa){0,14}$";
        assert!(parts(pattern, &format!("{}b", "a".repeat(100))).is_ok());
        let refused = parts(pattern, &format!("{}b", "a".repeat(5_000))).unwrap_err();
        assert!(refused.contains("retry-limit-in-search over"), "{refused}");
    }
}
