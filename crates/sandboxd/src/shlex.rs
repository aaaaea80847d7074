//! Splits a command line like Python's `shlex.split`, because callers of `/execute` quote for it.
//!
//! Only words, quotes and backslashes: no variables, globs, pipes or comments. A caller that needs a shell
//! starts one.

/// Reason why a line cannot be split. The texts are Python's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A `'` or `"` is not closed.
    #[error("No closing quotation")]
    Quotation,
    /// The line ends in a backslash.
    #[error("No escaped character")]
    Escape,
}

#[derive(Clone, Copy)]
enum State {
    /// Between words.
    Space,
    /// Inside a word.
    Word,
    /// Inside single quotes, where no character is special.
    Single,
    /// Inside double quotes, where a backslash escapes only itself and the quote.
    Double,
    /// After a backslash outside quotes.
    Escape,
    /// After a backslash inside double quotes.
    DoubleEscape,
}

/// Splits a line into words.
///
/// # Errors
/// A quotation or an escape is incomplete.
pub fn split(line: &str) -> Result<Vec<String>, SplitError> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut state = State::Space;
    for c in line.chars() {
        state = match (state, c) {
            (State::Space, ' ' | '\t' | '\r' | '\n') => State::Space,
            (State::Word, ' ' | '\t' | '\r' | '\n') => {
                words.push(std::mem::take(&mut word));
                State::Space
            }
            (State::Space | State::Word, '\'') => State::Single,
            (State::Space | State::Word, '"') => State::Double,
            (State::Space | State::Word, '\\') => State::Escape,
            (State::Single, '\'') | (State::Double, '"') => State::Word,
            (State::Double, '\\') => State::DoubleEscape,
            (State::DoubleEscape, _) => {
                if !matches!(c, '\\' | '"') {
                    word.push('\\');
                }
                word.push(c);
                State::Double
            }
            (State::Single | State::Double, _) => {
                word.push(c);
                state
            }
            (State::Space | State::Word | State::Escape, _) => {
                word.push(c);
                State::Word
            }
        };
    }
    match state {
        State::Space => {}
        State::Word => words.push(word),
        State::Single | State::Double => return Err(SplitError::Quotation),
        State::Escape | State::DoubleEscape => return Err(SplitError::Escape),
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_quotes_and_escapes() {
        let table: &[(&str, &[&str])] = &[
            ("", &[]),
            ("  \t\n ", &[]),
            ("echo 'a b'  c", &["echo", "a b", "c"]),
            ("a'b'\"c\"d", &["abcd"]),
            ("''", &[""]),
            ("a '' b", &["a", "", "b"]),
            (r#""\$x \" \\ \n""#, &[r#"\$x " \ \n"#]),
            (r"a\ b \' \\", &["a b", "'", r"\"]),
            ("echo # not a comment", &["echo", "#", "not", "a", "comment"]),
            ("a|b;c&&d $X *", &["a|b;c&&d", "$X", "*"]),
            ("ü\u{a0}x", &["ü\u{a0}x"]),
            ("a\\\nb", &["a\nb"]),
        ];
        for (line, words) in table {
            assert_eq!(split(line).unwrap(), *words, "{line:?}");
        }
    }

    #[test]
    fn incomplete_quotes_and_escapes_are_refused() {
        assert_eq!(split("echo 'a"), Err(SplitError::Quotation));
        assert_eq!(split("echo \"a"), Err(SplitError::Quotation));
        assert_eq!(split("echo \\"), Err(SplitError::Escape));
        assert_eq!(split("echo \"a\\"), Err(SplitError::Escape));
    }
}
