//! Equality of numbers of any type. The interpreter takes 2 and 2.0 for different, and a server takes them for the same.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr, operators};
use kube_cel::cel::objects::Map;
use kube_cel::cel::{Context, ExecutionError, Value};

use super::WHOLE;

/// Functions in the place of operators. No expression can name them.
const EQUAL: &str = "is equal";
const DIFFERENT: &str = "is different";
const IN: &str = "is in";

/// Adds the functions to those of an evaluation.
pub(super) fn add(context: &mut Context<'_>) {
    context.add_function(EQUAL, |left: Value, right: Value| equal(&left, &right));
    context.add_function(DIFFERENT, |left: Value, right: Value| equal(&left, &right).map(|equal| !equal));
    context.add_function(IN, is_in);
}

/// Puts the functions in the place of the operators.
pub(super) fn replace(expression: &mut IdedExpr) {
    match &mut expression.expr {
        Expr::Call(call) => {
            let function = match (call.func_name.as_str(), call.args.len()) {
                (operators::EQUALS, 2) => Some(EQUAL),
                (operators::NOT_EQUALS, 2) => Some(DIFFERENT),
                (operators::IN, 2) => Some(IN),
                _ => None,
            };
            function.into_iter().for_each(|function| function.clone_into(&mut call.func_name));
            call.target.as_deref_mut().into_iter().chain(&mut call.args).for_each(replace);
        }
        Expr::Comprehension(comprehension) => {
            let of = &mut **comprehension;
            [&mut of.iter_range, &mut of.accu_init, &mut of.loop_cond, &mut of.loop_step, &mut of.result]
                .into_iter()
                .for_each(replace);
        }
        Expr::List(list) => list.elements.iter_mut().for_each(replace),
        Expr::Map(map) => map.entries.iter_mut().for_each(|entry| replace_in(&mut entry.expr)),
        Expr::Struct(object) => object.entries.iter_mut().for_each(|entry| replace_in(&mut entry.expr)),
        Expr::Select(select) => replace(&mut select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn replace_in(entry: &mut EntryExpr) {
    match entry {
        EntryExpr::StructField(field) => replace(&mut field.value),
        EntryExpr::MapEntry(entry) => {
            replace(&mut entry.key);
            replace(&mut entry.value);
        }
    }
}

/// Returns true if two values are the same, whatever the types of numbers in them.
///
/// # Errors
/// They have numbers that some servers take for the same, and others do not.
fn equal(left: &Value, right: &Value) -> Result<bool, ExecutionError> {
    match (left, right) {
        (Value::List(left), Value::List(right)) => {
            all(left.len() == right.len(), left.iter().zip(right.iter()))
        }
        (Value::Map(Map { map: left }), Value::Map(Map { map: right })) => {
            let pairs = left.iter().map_while(|(key, value)| Some((value, right.get(key)?)));
            let have_same_keys = left.len() == right.len() && left.keys().all(|key| right.contains_key(key));
            all(have_same_keys, pairs)
        }
        _ => match (number(left), number(right)) {
            (Some(one), Some(other)) if one == other => {
                // Larger whole numbers have several neighbors that are read as the same fraction.
                let is_exact = one.abs() < WHOLE
                    || one.fract() != 0.0
                    || (whole(left).is_some() && whole(left) == whole(right));
                let error = || ExecutionError::function_error(EQUAL, "the numbers are too large to compare");
                is_exact.then_some(true).ok_or_else(error)
            }
            (Some(_), Some(_)) => Ok(false),
            _ => Ok(left == right),
        },
    }
}

/// Returns true if all pairs are equal. An error counts if no pair differs.
fn all<'a>(
    is_alike: bool,
    pairs: impl Iterator<Item = (&'a Value, &'a Value)>,
) -> Result<bool, ExecutionError> {
    let mut result = Ok(is_alike);
    for (left, right) in pairs {
        match equal(left, right) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            error => result = result.and(error),
        }
    }
    if is_alike { result } else { Ok(false) }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(number) => Some(*number as f64),
        Value::UInt(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

/// Returns a number that was written without a fraction.
fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Int(number) => Some(i128::from(*number)),
        Value::UInt(number) => Some(i128::from(*number)),
        _ => None,
    }
}

/// Returns true if a list has a value, or a map a key.
fn is_in(value: Value, container: Value) -> Result<bool, ExecutionError> {
    let any = |mut values: Box<dyn Iterator<Item = Value> + '_>| {
        let mut result = Ok(false);
        let found = values.any(|one| match equal(&value, &one) {
            Ok(found) => found,
            error => {
                result = error;
                false
            }
        });
        if found { Ok(true) } else { result }
    };
    match &container {
        Value::List(list) => any(Box::new(list.iter().cloned())),
        Value::Map(map) => any(Box::new(map.map.keys().map(Value::from))),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value of an expression, whose `x` is this number of JSON.
    fn value(text: &str, x: &str) -> Option<bool> {
        let program = kube_cel::cel::Program::compile(text).unwrap();
        let mut expression = program.expression().clone();
        replace(&mut expression);
        let mut context = Context::default();
        add(&mut context);
        let x: serde_json::Value = serde_json::from_str(x).unwrap();
        context.add_variable_from_value("x", kube_cel::cel::to_value(&x).unwrap());
        match Value::resolve(&expression, &context) {
            Ok(Value::Bool(value)) => Some(value),
            _ => None,
        }
    }

    /// Regression: `args.version == 2.0` never held, and `1.0` passed where `1` was denied.
    #[test]
    fn numbers_are_equal_whatever_their_type() {
        for two in ["2", "2.0", "2e0", "20e-1"] {
            for text in
                ["x == 2", "x == 2.0", "x in [1, 2]", "x in [1.0, 2.0]", "[x] == [2.0]", "x in {2: true}"]
            {
                assert_eq!(value(text, two), Some(true), "{text} for {two}");
            }
            for text in
                ["x != 2", "x != 2.0", "x == 3", "x in [2.5]", "[x] != [2.0]", "x == '2'", "!(x in [2])"]
            {
                assert_eq!(value(text, two), Some(false), "{text} for {two}");
            }
        }
        assert_eq!(value("x.exists(y, y == 2.0)", "[1, 2]"), Some(true));
        assert_eq!(value("x == {'a': 1.0}", r#"{"a": 1}"#), Some(true));
        assert_eq!(value("x == {'a': 1.0}", r#"{"b": 1}"#), Some(false));
        assert_eq!(value("x == 2.5", "2.5"), Some(true));
    }

    #[test]
    fn large_numbers_that_servers_read_in_several_ways_have_no_value() {
        let text = "x == 1234567890123456768";
        assert_eq!(value(text, "1234567890123456768"), Some(true));
        assert_eq!(value(text, "1234567890123456768.0"), None);
        assert_eq!(value(text, "1234567890123456769"), None, "the same for a server in JavaScript");
        assert_eq!(value(text, "1234567890123450000"), Some(false));
        assert_eq!(value("x in [1, 1234567890123456768]", "1234567890123456769"), None);
        assert_eq!(
            value("x in [1234567890123456768, 1234567890123456769]", "1234567890123456769"),
            Some(true)
        );
        assert_eq!(value("x != 1234567890123456768", "1234567890123456769"), None);
    }
}
