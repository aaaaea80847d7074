//! The part of JSONPath that printer columns use: fields, quoted fields, indexes, slices of all, and filters.

use serde_json::Value;

/// Longest expression that is read.
const MAX_LENGTH: usize = 1024;
/// Deepest nesting of steps.
const MAX_STEPS: usize = 64;

/// A parsed expression such as `.status.conditions[?(@.type=='Ready')].status`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// From the end if negative.
    Index(i64),
    All,
    Descend,
    Filter(JsonPath, Option<(Operator, Value)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

impl JsonPath {
    /// Reads an expression, with or without braces and a leading `$`.
    pub(crate) fn parse(text: &str) -> Result<JsonPath, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("is longer than {MAX_LENGTH} bytes"));
        }
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let (path, rest) = steps(text.trim_start_matches('$'))?;
        if rest.is_empty() { Ok(path) } else { Err(format!("unexpected \"{rest}\"")) }
    }

    /// Every value that the expression finds, in document order.
    pub(crate) fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.0 {
            let mut next = Vec::new();
            found.into_iter().for_each(|value| step.apply(value, &mut next));
            found = next;
        }
        found
    }
}

impl Step {
    fn apply<'a>(&self, value: &'a Value, found: &mut Vec<&'a Value>) {
        match (self, value) {
            (Step::Field(name), Value::Object(map)) => found.extend(map.get(name)),
            (Step::Index(index), Value::Array(items)) => {
                let index = if *index < 0 { *index + items.len() as i64 } else { *index };
                found.extend(usize::try_from(index).ok().and_then(|i| items.get(i)));
            }
            (Step::All, Value::Array(items)) => found.extend(items),
            (Step::All, Value::Object(map)) => found.extend(map.values()),
            (Step::Descend, value) => descend(value, found),
            (Step::Filter(path, test), Value::Array(items)) => {
                found.extend(items.iter().filter(|item| holds(path, test.as_ref(), item)));
            }
            _ => {}
        }
    }
}

fn descend<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    found.push(value);
    match value {
        Value::Object(map) => map.values().for_each(|child| descend(child, found)),
        Value::Array(items) => items.iter().for_each(|child| descend(child, found)),
        _ => {}
    }
}

fn holds(path: &JsonPath, test: Option<&(Operator, Value)>, item: &Value) -> bool {
    let found = path.find(item);
    let Some((operator, wanted)) = test else { return !found.is_empty() };
    found.first().is_some_and(|value| {
        let order = match (value, wanted) {
            (Value::String(a), Value::String(b)) => a.partial_cmp(b),
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::Bool(a), Value::Bool(b)) => a.partial_cmp(b),
            _ => None,
        };
        order.is_some_and(|order| match operator {
            Operator::Equal => order.is_eq(),
            Operator::NotEqual => order.is_ne(),
            Operator::Less => order.is_lt(),
            Operator::LessOrEqual => order.is_le(),
            Operator::More => order.is_gt(),
            Operator::MoreOrEqual => order.is_ge(),
        })
    })
}

/// Reads steps until the text ends or something else than a step begins; gives what is left.
fn steps(mut text: &str) -> Result<(JsonPath, &str), String> {
    let mut steps = Vec::new();
    loop {
        if steps.len() > MAX_STEPS {
            return Err(format!("has more than {MAX_STEPS} steps"));
        }
        if let Some(rest) = text.strip_prefix("..") {
            steps.push(Step::Descend);
            // In both `..name` and `..[0]` a step follows.
            if !rest.starts_with('[') {
                let (step, rest) = field(rest)?;
                steps.push(step);
                text = rest;
            } else {
                text = rest;
            }
        } else if let Some(rest) = text.strip_prefix('.') {
            if rest.is_empty() {
                // `.` alone is the whole object.
                text = rest;
            } else if rest.starts_with('[') {
                text = rest;
            } else {
                let (step, rest) = field(rest)?;
                steps.push(step);
                text = rest;
            }
        } else if let Some(rest) = text.strip_prefix('[') {
            let (step, rest) = bracket(rest)?;
            steps.push(step);
            text = rest;
        } else {
            return Ok((JsonPath(steps), text));
        }
    }
}

fn field(text: &str) -> Result<(Step, &str), String> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    let mut end = text.len();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' | ']' | ')' | '=' | '!' | '<' | '>' | ' ' => {
                end = at;
                break;
            }
            c => name.push(c),
        }
    }
    match name.as_str() {
        "" => Err("a field name is missing".into()),
        "*" => Ok((Step::All, &text[end..])),
        _ => Ok((Step::Field(name), &text[end..])),
    }
}

fn bracket(text: &str) -> Result<(Step, &str), String> {
    if let Some(filter) = text.strip_prefix("?(") {
        return self::filter(filter);
    }
    if let Some(quote) = text.chars().next().filter(|c| matches!(c, '\'' | '"')) {
        let (name, rest) = quoted(&text[1..], quote)?;
        let rest = rest.strip_prefix(']').ok_or("unterminated array")?;
        return Ok((Step::Field(name), rest));
    }
    let (inner, rest) = text.split_once(']').ok_or("unterminated array")?;
    if inner == "*" || inner == ":" {
        return Ok((Step::All, rest));
    }
    let index = inner.trim().parse().map_err(|_| format!("invalid array index {inner}"))?;
    Ok((Step::Index(index), rest))
}

fn filter(text: &str) -> Result<(Step, &str), String> {
    let text = text.trim_start().strip_prefix('@').ok_or("a filter must begin with @")?;
    let (path, rest) = steps(text)?;
    let rest = rest.trim_start();
    if let Some(rest) = rest.strip_prefix(")]") {
        return Ok((Step::Filter(path, None), rest));
    }
    let operators = [
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::LessOrEqual),
        (">=", Operator::MoreOrEqual),
        ("<", Operator::Less),
        (">", Operator::More),
    ];
    let (operator, rest) = operators
        .iter()
        .find_map(|(sign, operator)| rest.strip_prefix(sign).map(|rest| (*operator, rest.trim_start())))
        .ok_or("unterminated filter")?;
    let (value, rest) = match rest.chars().next().filter(|c| matches!(c, '\'' | '"')) {
        Some(quote) => {
            let (text, rest) = quoted(&rest[1..], quote)?;
            (Value::String(text), rest)
        }
        None => {
            let end = rest.find(')').ok_or("unterminated filter")?;
            let text = rest[..end].trim();
            let value =
                serde_json::from_str(text).map_err(|_| format!("invalid value {text} in a filter"))?;
            (value, &rest[end..])
        }
    };
    let rest = rest.trim_start().strip_prefix(")]").ok_or("unterminated filter")?;
    Ok((Step::Filter(path, Some((operator, value))), rest))
}

fn quoted(text: &str, quote: char) -> Result<(String, &str), String> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            c if c == quote => return Ok((name, &text[at + c.len_utf8()..])),
            c => name.push(c),
        }
    }
    Err("unterminated quoted string".into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_find_what_kubectl_finds() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "x"}},
            "spec": {"n": 3, "list": [1, 2, 3]},
            "status": {"conditions": [{"type": "A", "status": "no", "n": 1}, {"type": "Ready", "status": "yes", "n": 5}]}
        });
        let cases = [
            (".spec.n", json!([3])),
            ("{.spec.n}", json!([3])),
            ("$.spec.n", json!([3])),
            (".status.conditions[?(@.type=='Ready')].status", json!(["yes"])),
            (".status.conditions[?(@.type == \"Ready\")].status", json!(["yes"])),
            (".status.conditions[?(@.n>1)].type", json!(["Ready"])),
            (".status.conditions[?(@.type!='Ready')].n", json!([1])),
            (".status.conditions[?(@.none)].n", json!([])),
            (".status.conditions[*].type", json!(["A", "Ready"])),
            (".metadata.annotations.a\\.b/c", json!(["x"])),
            (".metadata.annotations['a.b/c']", json!(["x"])),
            (".spec.list[-1]", json!([3])),
            (".spec.list[7]", json!([])),
            ("..type", json!(["A", "Ready"])),
            (".nothing.at.all", json!([])),
        ];
        for (text, wanted) in cases {
            let path = JsonPath::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(json!(path.find(&object)), wanted, "{text}");
        }
    }

    #[test]
    fn broken_expressions_are_refused() {
        for text in [".a[", ".a[x]", ".a[?(@.b==)]", ".a[?(b)]", ".a b", "a", ".a['b", ".a.."] {
            assert!(JsonPath::parse(text).is_err(), "{text}");
        }
    }
}
