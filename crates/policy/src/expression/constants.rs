//! Finds comparisons of values of different types, and constants without a value. Such a condition never holds, or never has a
//! value, whatever the sandbox does: a rule that denies by it would never deny.

use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use kube_cel::cel::{Context, Value};

use super::fields::Scope;

/// Operators that compare two values of one type.
const COMPARING: [&str; 6] = [
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
];

/// Operators whose operands are true or false.
const LOGICAL: [&str; 4] =
    [operators::LOGICAL_AND, operators::LOGICAL_OR, operators::LOGICAL_NOT, operators::CONDITIONAL];

/// Returns what is wrong, for a message.
pub(super) fn mistake(expression: &Expr) -> Option<String> {
    let is_args = |operand: &Expr| matches!(operand, Expr::Ident(name) if name == "args");
    let object = || Some("args is an object, and not true or false".to_owned());
    if is_args(expression) {
        return object();
    }
    Scope::default().first(expression, &|scope, part| {
        let Expr::Call(call) = part else { return None };
        let (name, args) = (call.func_name.as_str(), call.args.as_slice());
        match args {
            operands if LOGICAL.contains(&name) && operands.iter().any(|one| is_args(&one.expr)) => object(),
            [left, right] if COMPARING.contains(&name) => mismatch(scope, &left.expr, &right.expr),
            [left, right] if name == operators::IN => match &right.expr {
                Expr::List(list) => {
                    list.elements.iter().find_map(|one| mismatch(scope, &left.expr, &one.expr))
                }
                _ => None,
            },
            [argument] => without_value(part, call, text(&argument.expr)?),
            _ => None,
        }
    })
}

/// Returns why two values are never compared.
fn mismatch(scope: &Scope<'_>, left: &Expr, right: &Expr) -> Option<String> {
    let ((left, one), (right, other)) = (typed(scope, left)?, typed(scope, right)?);
    let hint = match one == "a time" || other == "a time" {
        true => "; a time is written as timestamp(\"2030-01-31T12:00:00Z\")",
        false => "",
    };
    (one != other).then(|| format!("{left} is {one}, and {right} is {other}, which are never compared{hint}"))
}

/// Returns the text and the type of a constant, of a variable or of a part of it; `None` if it may have any type.
fn typed(scope: &Scope<'_>, expression: &Expr) -> Option<(String, &'static str)> {
    if let Some((name, value)) = scope.known(expression) {
        return Some((name, kind(&value)?));
    }
    let kind = match expression {
        Expr::Literal(LiteralValue::String(text)) => return Some((format!("{:?}", text.inner()), "a text")),
        Expr::Literal(LiteralValue::Int(number)) => return Some((number.inner().to_string(), "a number")),
        Expr::Literal(LiteralValue::Double(number)) => return Some((number.inner().to_string(), "a number")),
        Expr::Literal(LiteralValue::Boolean(truth)) => return Some((truth.inner().to_string(), "a truth")),
        Expr::Call(call) => match call.func_name.as_str() {
            "timestamp" => "a time",
            "duration" => "a duration",
            "string" => "a text",
            "size" | "int" | "double" => "a number",
            name if name.starts_with("get") => "a number",
            _ => return None,
        },
        _ => return None,
    };
    let Expr::Call(call) = expression else { return None };
    Some((format!("{}(...)", call.func_name), kind))
}

fn kind(value: &Value) -> Option<&'static str> {
    match value {
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => Some("a number"),
        Value::String(_) => Some("a text"),
        Value::Timestamp(_) => Some("a time"),
        Value::Bool(_) => Some("a truth"),
        Value::Map(_) => Some("an object"),
        _ => None,
    }
}

/// Maximum bytes of a compiled regular expression.
pub(super) const COMPILED: usize = 1 << 18;

/// Returns why a call with this constant has no value.
fn without_value(expression: &Expr, call: &CallExpr, text: &str) -> Option<String> {
    match call.func_name.as_str() {
        name @ ("timestamp" | "duration" | "int" | "double") if call.target.is_none() => {
            let constant = IdedExpr { id: 0, expr: expression.clone() };
            Value::resolve(&constant, &Context::default()).err()?;
            let like = match name {
                "timestamp" => "a time; write it like 2030-01-31T12:00:00Z",
                "duration" => "a time; write it like 1h30m",
                _ => "a number",
            };
            Some(format!("{text:?} is not {like}"))
        }
        "matches" => {
            let error = regex::RegexBuilder::new(text).size_limit(COMPILED).build().err()?.to_string();
            let reason = error.lines().last().unwrap_or_default().trim().to_owned();
            Some(format!("{text:?} is not a regular expression: {reason}"))
        }
        _ => None,
    }
}

fn text(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Expression;

    #[test]
    fn values_that_are_never_compared_and_constants_without_a_value_are_found() {
        let never = "which are never compared";
        for (text, expected) in [
            ("request.port == \"8765\"", "request.port is a number, and \"8765\" is a text"),
            ("\"8765\" != request.port", "\"8765\" is a text, and request.port is a number"),
            ("request['port'] == '80'", never),
            ("request.port in [80, \"443\"]", "request.port is a number, and \"443\" is a text"),
            ("request.host == 1", never),
            ("session.denials > '3'", never),
            ("session.denials > 3 || !(request.method == true)", never),
            ("sandbox == 'a'", "sandbox is an object"),
            ("user.name == 1", never),
            ("now > \"2030-01-01\"", "a time is written as timestamp"),
            ("now.getHours() >= '8'", "getHours(...) is a number"),
            ("size(request.path) > '1'", never),
            ("args.list.all(x, request.port == 'x')", never),
            ("now > timestamp('2030')", "\"2030\" is not a time"),
            ("request.host.matches('(')", "\"(\" is not a regular expression"),
            ("args.a.matches('[')", "is not a regular expression"),
            ("now - timestamp(task.begin) > duration('5')", "\"5\" is not a time; write it like 1h30m"),
            ("args.a > int('x')", "\"x\" is not a number"),
            ("args", "args is an object"),
            ("!args", "args is an object"),
            ("args.a == 1 && args", "args is an object"),
        ] {
            let expression = Expression::try_from(text.to_owned()).unwrap();
            let found = expression.mistake().expect(text);
            assert!(found.contains(expected), "{text}: {found}");
        }
    }

    #[test]
    fn values_of_one_type_or_of_any_type_pass() {
        for text in [
            "request.port == 8765 && request.port != 1.5",
            "request.port in [80, 443]",
            "request.host in ['a.example'] && request.host > 'a'",
            "task.risk <= 2 && task.type == 'review'",
            "args.a == 1 && args.b == 'x' && args.c == null",
            "sandbox.labels.app == 'x' && sandbox.labels['a'] in ['b']",
            "request.headers['x'] == 'y'",
            "now > timestamp('2030-01-01T00:00:00Z') && now.getHours() >= 8",
            "args.list.all(request, request.port == 'x')",
            "user.name == null || user.name == 'alice'",
            "request.host.matches('^a+$') && timestamp(task.until) > now",
            "string(session.denials) == '3' && size(request.path) > 1",
            "now - timestamp('2030-01-01T00:00:00Z') < duration('1h30m') && args.a > int('5') && args.b < double('1.5')",
        ] {
            let expression = Expression::try_from(text.to_owned()).unwrap();
            assert_eq!(expression.mistake(), None, "{text}");
        }
    }
}
