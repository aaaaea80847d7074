//! Label selectors, as text (`a=b,c in (d,e),!f`) and as objects (`matchLabels`, `matchExpressions`).

use std::fmt;

use hutch_api::syntax::is_label_value;
use serde_json::Value;

use super::{MAX_LENGTH, SelectorError};

/// All requirements must hold; none at all matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

/// Requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    /// The label.
    pub key: String,
    /// Comparison.
    pub operator: Operator,
    /// Values to compare with.
    pub values: Vec<String>,
}

/// Comparison of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    /// The label is present with this value.
    Equals,
    /// The label is absent or has another value.
    NotEquals,
    /// One of the values, and there.
    In,
    /// None of the values, or not there.
    NotIn,
    /// There.
    Exists,
    /// Not there.
    DoesNotExist,
    /// A whole number above the value.
    GreaterThan,
    /// A whole number below the value.
    LessThan,
}

impl LabelSelector {
    /// Reads the text of a `labelSelector` parameter.
    pub(crate) fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_LENGTH {
            return Err(SelectorError::Labels(format!("the selector is longer than {MAX_LENGTH} bytes")));
        }
        let mut requirements = Vec::new();
        for part in split(text)? {
            let part = part.trim();
            if part.is_empty() {
                if text.trim().is_empty() {
                    break;
                }
                return Err(SelectorError::Labels(
                    "found '', expected: !, identifier, or 'end of string'".into(),
                ));
            }
            requirements.push(requirement(part)?);
        }
        Ok(LabelSelector(requirements))
    }

    /// Reads a selector of an object's spec. An empty object matches everything.
    pub(crate) fn from_object(selector: &Value) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_string();
            requirements.push(Requirement {
                key: key.clone(),
                operator: Operator::Equals,
                values: vec![value],
            });
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let operator = match expression["operator"].as_str().unwrap_or_default() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(SelectorError::Labels(format!(
                        "{other:?} is not a valid label selector operator"
                    )));
                }
            };
            let values = expression["values"].as_array().into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(Into::into).collect();
            let key = expression["key"].as_str().unwrap_or_default().to_string();
            requirements.push(Requirement { key, operator, values }.checked()?);
        }
        Ok(LabelSelector(requirements))
    }

    /// Returns true if it matches everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if an object's labels match.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        self.0.iter().all(|requirement| {
            let value = labels.and_then(|l| l.get(&requirement.key)).and_then(Value::as_str);
            requirement.holds(value)
        })
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = |compare: fn(&i64, &i64) -> bool| {
            let value = value.and_then(|v| v.parse().ok());
            let bound = self.values.first().and_then(|v| v.parse().ok());
            matches!((value, bound), (Some(value), Some(bound)) if compare(&value, &bound))
        };
        match self.operator {
            Operator::In | Operator::Equals => {
                value.is_some_and(|value| self.values.iter().any(|v| v == value))
            }
            Operator::NotIn | Operator::NotEquals => {
                value.is_none_or(|value| self.values.iter().all(|v| v != value))
            }
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => number(i64::gt),
            Operator::LessThan => number(i64::lt),
        }
    }

    fn checked(self) -> Result<Self, SelectorError> {
        let error = |what: String| Err(SelectorError::Labels(what));
        let name = self.key.rsplit('/').next().unwrap_or_default();
        if name.is_empty() || !is_label_value(name) {
            return error(format!(
                "key: Invalid value: {:?}: name part must consist of alphanumeric characters, '-', '_' or '.', and must \
                 start and end with an alphanumeric character",
                self.key
            ));
        }
        match self.operator {
            Operator::In | Operator::NotIn if self.values.is_empty() => error(
                "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty".into(),
            ),
            Operator::Exists | Operator::DoesNotExist if !self.values.is_empty() => {
                error("values: Invalid value: values set must be empty for exists and does not exist".into())
            }
            Operator::GreaterThan | Operator::LessThan
                if self.values.iter().any(|v| v.parse::<i64>().is_err()) =>
            {
                error("values: Invalid value: for 'Gt', 'Lt' operators, the value must be an integer".into())
            }
            _ => match self.values.iter().find(|v| !is_label_value(v)) {
                Some(value) => error(format!(
                    "values: Invalid value: {value:?}: a valid label must be an empty string or consist of alphanumeric \
                     characters, '-', '_' or '.', and must start and end with an alphanumeric character"
                )),
                None => Ok(self),
            },
        }
    }
}

/// Splits at the commas that are not within parentheses.
fn split(text: &str) -> Result<Vec<&str>, SelectorError> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err(SelectorError::Labels(format!("found '{c}', expected: ',' or 'end of string'")));
        }
    }
    if depth != 0 {
        return Err(SelectorError::Labels("found '', expected: ',' or ')'".into()));
    }
    parts.push(&text[start..]);
    Ok(parts)
}

fn requirement(part: &str) -> Result<Requirement, SelectorError> {
    let new = |key: &str, operator, values: Vec<String>| {
        Requirement { key: key.trim().into(), operator, values }.checked()
    };
    if let Some(key) = part.strip_prefix('!') {
        return new(key, Operator::DoesNotExist, Vec::new());
    }
    if let Some((head, list)) = part.split_once('(') {
        let list = list.trim_end().strip_suffix(')');
        let list = list.ok_or_else(|| SelectorError::Labels(format!("found '{part}', expected: ')'")))?;
        let mut words = head.split_whitespace();
        let (key, word) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let operator = match (word, words.next()) {
            ("in", None) => Operator::In,
            ("notin", None) => Operator::NotIn,
            _ => {
                let expected = "expected: in, notin, =, ==, !=, gt, lt";
                return Err(SelectorError::Labels(format!("found '{word}', {expected}")));
            }
        };
        return new(key, operator, list.split(',').map(|v| v.trim().to_string()).collect());
    }
    let signs = [
        ("!=", Operator::NotEquals),
        ("==", Operator::Equals),
        ("=", Operator::Equals),
        (">", Operator::GreaterThan),
        ("<", Operator::LessThan),
    ];
    // The first sign in the text decides; of two that begin at one place the longer.
    let found = signs.iter().filter_map(|(sign, operator)| Some((part.find(sign)?, *sign, *operator)));
    match found.min_by_key(|(at, sign, _)| (*at, std::cmp::Reverse(sign.len()))) {
        Some((at, sign, operator)) => new(&part[..at], operator, vec![part[at + sign.len()..].trim().into()]),
        None => new(part, Operator::Exists, Vec::new()),
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut requirements: Vec<_> = self.0.iter().collect();
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        for (index, Requirement { key, operator, values }) in requirements.into_iter().enumerate() {
            if index > 0 {
                out.write_str(",")?;
            }
            let list = values.join(",");
            match operator {
                Operator::Equals => write!(out, "{key}={list}")?,
                Operator::NotEquals => write!(out, "{key}!={list}")?,
                Operator::In => write!(out, "{key} in ({list})")?,
                Operator::NotIn => write!(out, "{key} notin ({list})")?,
                Operator::Exists => out.write_str(key)?,
                Operator::DoesNotExist => write!(out, "!{key}")?,
                Operator::GreaterThan => write!(out, "{key}>{list}")?,
                Operator::LessThan => write!(out, "{key}<{list}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_match_as_kubernetes_matches() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "", "n": "5", "a.b/c": "d"}}});
        let bare = json!({"metadata": {}});
        let cases = [
            ("", true, true),
            ("app=web", true, false),
            ("app==web", true, false),
            ("app = web , n=5", true, false),
            ("app!=web", false, true),
            ("app", true, false),
            ("!app", false, true),
            ("! app", false, true),
            ("tier=", true, false),
            ("app in (db, web)", true, false),
            ("app notin (db,web)", false, true),
            ("n>4", true, false),
            ("n<4", false, false),
            ("a.b/c=d,app in (web)", true, false),
            ("app in (db),n", false, false),
        ];
        for (text, full, empty) in cases {
            let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!((selector.matches(&object), selector.matches(&bare)), (full, empty), "{text}");
        }
    }

    #[test]
    fn invalid_selector_is_refused() {
        for text in
            ["a in", "a in (b", "a=b,", "=b", "a=b c", "a like (b)", "a>b", "a in ((b))", "-a", "a=b)", "x y"]
        {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn selectors_of_specs_have_a_text() {
        let selector = json!({"matchLabels": {"b": "1"}, "matchExpressions": [
            {"key": "a", "operator": "NotIn", "values": ["x", "y"]}, {"key": "c", "operator": "Exists"}]});
        let selector = LabelSelector::from_object(&selector).expect("a selector");
        assert_eq!(selector.to_string(), "a notin (x,y),b=1,c");
        assert_eq!(
            LabelSelector::parse("a notin (x,y),b=1,c").expect("a selector").to_string(),
            selector.to_string()
        );
        assert!(
            LabelSelector::from_object(&json!({"matchExpressions": [{"key": "a", "operator": "In"}]}))
                .is_err()
        );
        assert!(
            LabelSelector::from_object(&json!({"matchExpressions": [{"key": "a", "operator": "Like"}]}))
                .is_err()
        );
    }
}
