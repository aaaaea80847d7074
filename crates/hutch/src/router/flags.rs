//! Flags in the syntax of Go's packages: `-name`, `--name=value`, `--name value`, and for a switch `--name` alone or
//! `--name=false`. The same names are the keys of a flat YAML file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::go::{self, Word};

/// Values of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing, or `=true` and `=false`.
    Switch,
    /// A value; the word that stands for it in the help.
    Value(&'static str),
}

/// A flag: name, kind of its value, default in words, help text.
pub(crate) type Flag = (&'static str, Kind, &'static str, &'static str);

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    CommandLine,
    File(PathBuf),
    Environment(&'static str),
}

/// Given values, each from the source with the highest precedence.
#[derive(Debug, Default)]
pub(crate) struct Given(BTreeMap<&'static str, (String, Source)>);

impl Given {
    /// Parses a command line. The last occurrence of a flag counts.
    pub(crate) fn command_line(flags: &[Flag], words: &[OsString]) -> Result<Given, String> {
        let mut given = Given::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let word = word.to_str().ok_or("a word of the command line is not UTF-8")?;
            let (name, value) = match go::word(word) {
                Some(Word::Flag(name, value)) => (name, value.map(str::to_owned)),
                None => return Err(format!("`{word}` is no flag; write --name or --name=value")),
                Some(Word::End | Word::Other(_)) => {
                    return Err(format!(
                        "`{word}` is not expected: there are only flags, such as --authz-mode=tokenreview"
                    ));
                }
            };
            let (name, kind) =
                find(flags, name).ok_or_else(|| format!("--{name}: no such flag; see --help"))?;
            let value = match (value, kind) {
                (Some(value), _) => value,
                (None, Kind::Switch) => "true".to_owned(),
                (None, Kind::Value(what)) => {
                    let next = words.next().and_then(|word| word.to_str());
                    next.ok_or_else(|| format!("--{name}: {what} is missing behind it"))?.to_owned()
                }
            };
            given.0.insert(name, (value, Source::CommandLine));
        }
        Ok(given)
    }

    /// Adds the values of a file that no source of higher precedence has set.
    pub(crate) fn add_file(&mut self, flags: &[Flag], file: &Path, text: &str) -> Result<(), String> {
        let wrong = |cause: String| format!("{}: {cause}", file.display());
        // A file with only comments has no settings.
        let values: Option<BTreeMap<String, serde_json::Value>> = serde_saphyr::from_str(text)
            .map_err(|error| wrong(format!("is not a flat YAML file: {}", one_line(&error.to_string()))))?;
        for (key, value) in values.unwrap_or_default() {
            let (name, _) = find(flags, &key).filter(|(name, _)| *name != "config").ok_or_else(|| {
                wrong(format!("`{key}` is no setting; the settings are the names of the flags"))
            })?;
            let value = scalar(&value).ok_or_else(|| wrong(format!("`{key}` has to be one value")))?;
            self.0.entry(name).or_insert((value, Source::File(file.to_owned())));
        }
        Ok(())
    }

    /// Adds a value of the environment, unless a source of higher precedence has set one.
    pub(crate) fn add_environment(&mut self, name: &'static str, variable: &'static str, value: String) {
        self.0.entry(name).or_insert((value, Source::Environment(variable)));
    }

    /// Returns the value of a flag as text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|(value, _)| value.as_str())
    }

    /// Returns a value, parsed by `read`. A mistake names its origin.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let Some((value, source)) = self.0.get(name) else { return Ok(None) };
        let named = |cause: String| match source {
            Source::CommandLine => format!("--{name}: {cause}"),
            Source::File(file) => format!("{}: {name}: {cause}", file.display()),
            Source::Environment(variable) => format!("{variable}: {cause}"),
        };
        read(value).map(Some).map_err(named)
    }

    pub(crate) fn source(&self, name: &str) -> Option<&Source> {
        self.0.get(name).map(|(_, source)| source)
    }
}

fn find(flags: &[Flag], name: &str) -> Option<(&'static str, Kind)> {
    flags.iter().find(|(known, ..)| *known == name).map(|(known, kind, ..)| (*known, *kind))
}

fn scalar(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => Some(value.to_string()),
        serde_json::Value::Array(items) => {
            let texts: Option<Vec<String>> = items.iter().map(scalar).collect();
            texts.map(|texts| texts.join(","))
        }
        serde_json::Value::Null | serde_json::Value::Object(_) => None,
    }
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Parses a boolean in the syntax of Go.
pub(crate) fn truth(text: &str) -> Result<bool, String> {
    go::boolean(text).ok_or_else(|| format!("`{text}` is neither true nor false"))
}

/// Parses a number without sign.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| format!("`{text}` is not a number from 0 on"))
}

/// Parses a time in the syntax of Go.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    go::duration(text).ok_or_else(|| format!("`{text}` is not a duration; write it like 30s, 250ms or 1m30s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: [Flag; 3] = [
        ("http-bind-address", Kind::Value("ADDRESS"), ":8080", ""),
        ("access-log", Kind::Switch, "true", ""),
        ("authz-tokenreview-audiences", Kind::Value("LIST"), "", ""),
    ];

    fn line(words: &[&str]) -> Result<Given, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Given::command_line(&FLAGS, &words)
    }

    #[test]
    fn flags_have_the_syntax_of_go() {
        for words in [
            &["-http-bind-address", ":1", "--access-log=false"][..],
            &["--http-bind-address=:1", "-access-log=false"],
            &["--http-bind-address=:9", "--http-bind-address=:1", "--access-log", "--access-log=false"],
        ] {
            let given = line(words).unwrap();
            assert_eq!(
                (given.text("http-bind-address"), given.text("access-log")),
                (Some(":1"), Some("false"))
            );
        }
        assert_eq!(line(&["--http-bind-address="]).unwrap().text("http-bind-address"), Some(""));
        for (words, named) in [
            (&["--nonsense"][..], "--nonsense"),
            (&["--http-bind-address"], "--http-bind-address"),
            (&["--access-log", "false"], "false"),
            (&["--"], "--"),
            (&["stray"], "stray"),
        ] {
            let mistake = line(words).unwrap_err();
            assert!(mistake.contains(named) && !mistake.contains('\n'), "{words:?}: {mistake}");
        }
    }

    #[test]
    fn file_sets_what_the_command_line_does_not() {
        let mut given = line(&["--access-log=false"]).unwrap();
        let text = "access-log: true\nhttp-bind-address: \":1\"\nauthz-tokenreview-audiences: [a, b]\n";
        given.add_file(&FLAGS, Path::new("f"), text).unwrap();
        given.add_environment("http-bind-address", "X", ":2".into());
        assert_eq!(given.text("access-log"), Some("false"));
        assert_eq!(given.text("http-bind-address"), Some(":1"));
        assert_eq!(given.text("authz-tokenreview-audiences"), Some("a,b"));
        Given::default().add_file(&FLAGS, Path::new("f"), "# nothing\n").unwrap();
        for wrong in
            ["nonsense: 1", "httpBindAddress: :1", "a: [", "- a", "access-log: {a: 1}", "access-log:"]
        {
            let mistake = Given::default().add_file(&FLAGS, Path::new("f"), wrong).unwrap_err();
            assert!(mistake.starts_with("f: ") && !mistake.contains('\n'), "{wrong}: {mistake}");
        }
    }

    #[test]
    fn durations_have_the_syntax_of_go() {
        assert_eq!(duration("1h1m1s1ms"), Ok(Duration::from_millis(3_661_001)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for wrong in ["", "1", "s", "-1s", "1x", "1s2", "inf", "1e3s", "99999999999999999999h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
