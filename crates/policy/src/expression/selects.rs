//! Finds fields that an expression takes of a part of `args` that has no fields.
//!
//! The interpreter takes such a field for `false`, so that `args.q != 'x'` would hold for arguments that are a list.

use kube_cel::cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};
use serde_json::Value;

use super::children::children;

/// Returns true if every field that the expression takes of these arguments, or of a part of them, is that of an object. One
/// that is missing has no value anyway.
pub(super) fn are_of_objects(expression: &Expr, arguments: &Value) -> bool {
    Walk { bound: vec![("args", Part::Known(arguments))] }.expression(expression)
}

/// Returns a field that the expression takes of a value that is computed, whatever the arguments are. For [`are_of_objects`] it
/// is that of no object.
pub(super) fn of_computed(expression: &Expr) -> Option<&str> {
    Forms { bound: vec![("args", Form::Literal)] }.expression(expression)
}

/// Way in which an expression gets a value.
#[derive(Clone, Copy)]
enum Form {
    /// By literal keys of the arguments.
    Literal,
    Computed,
    /// Not from the arguments.
    Other,
}

/// A walk through an expression without arguments.
struct Forms<'a> {
    /// As in [`Walk`].
    bound: Vec<(&'a str, Form)>,
}

impl<'a> Forms<'a> {
    fn expression(&mut self, expression: &'a Expr) -> Option<&'a str> {
        match expression {
            Expr::Select(select) => match self.form(&select.operand.expr) {
                Form::Computed => Some(&select.field),
                Form::Literal | Form::Other => self.expression(&select.operand.expr),
            },
            Expr::Comprehension(of) => self.all([&of.iter_range, &of.accu_init]).or_else(|| {
                let (before, of_item) = (self.bound.len(), self.form(&of.iter_range.expr));
                let first = if of.iter_var2.is_some() { Form::Computed } else { of_item };
                self.bound.extend([(of.accu_var.as_str(), Form::Other), (of.iter_var.as_str(), first)]);
                self.bound.extend(of.iter_var2.as_deref().map(|second| (second, of_item)));
                let found = self.all([&of.loop_cond, &of.loop_step, &of.result]);
                self.bound.truncate(before);
                found
            }),
            other => self.all(children(other)),
        }
    }

    fn all(&mut self, expressions: impl IntoIterator<Item = &'a IdedExpr>) -> Option<&'a str> {
        expressions.into_iter().find_map(|part| self.expression(&part.expr))
    }

    fn form(&self, expression: &Expr) -> Form {
        match expression {
            Expr::Ident(name) => {
                let bound = self.bound.iter().rev().find(|(known, _)| known == name);
                bound.map_or(Form::Other, |(_, form)| *form)
            }
            Expr::Select(select) if !select.test => self.form(&select.operand.expr),
            Expr::Call(call) if call.func_name == operators::INDEX => match call.args.as_slice() {
                [of, key] => match (self.form(&of.expr), &key.expr) {
                    (Form::Literal, Expr::Literal(LiteralValue::String(_) | LiteralValue::Int(_))) => {
                        Form::Literal
                    }
                    (Form::Literal, _) => Form::Computed,
                    (other, _) => other,
                },
                _ => Form::Computed,
            },
            Expr::Literal(_) => Form::Other,
            _ => Form::Computed,
        }
    }
}

/// Part of the arguments for which an expression stands.
#[derive(Clone, Copy)]
enum Part<'a> {
    Known(&'a Value),
    Missing,
    /// Computed from the arguments.
    Computed,
    /// None of them.
    Other,
}

/// A walk through an expression.
struct Walk<'a> {
    /// Variables, the innermost last.
    bound: Vec<(&'a str, Part<'a>)>,
}

impl<'a> Walk<'a> {
    fn expression(&mut self, expression: &'a Expr) -> bool {
        match expression {
            Expr::Select(select) => {
                let operand = &select.operand.expr;
                let has_fields = match self.part(operand) {
                    Part::Known(value) => value.is_object(),
                    Part::Missing | Part::Other => true,
                    Part::Computed => false,
                };
                has_fields && self.expression(operand)
            }
            Expr::Comprehension(of) => self.all([&of.iter_range, &of.accu_init]) && self.comprehension(of),
            other => self.all(children(other)),
        }
    }

    fn all(&mut self, expressions: impl IntoIterator<Item = &'a IdedExpr>) -> bool {
        expressions.into_iter().all(|part| self.expression(&part.expr))
    }

    /// Walks through the body of a loop, with each value of its variable.
    fn comprehension(&mut self, of: &'a ComprehensionExpr) -> bool {
        let values: Vec<Part<'a>> = match self.part(&of.iter_range.expr) {
            Part::Known(Value::Array(items)) => items.iter().map(Part::Known).collect(),
            // Its keys, or its values.
            Part::Known(Value::Object(fields)) if of.iter_var2.is_none() => {
                vec![Part::Computed; fields.len().min(1)]
            }
            Part::Known(Value::Object(fields)) => fields.values().map(Part::Known).collect(),
            // Nothing is repeated.
            Part::Known(_) | Part::Missing => return true,
            computed @ (Part::Computed | Part::Other) => vec![computed],
        };
        values.into_iter().all(|value| {
            let before = self.bound.len();
            // With two variables the first one is a number or a key.
            let (first, second) = match of.iter_var2.as_deref() {
                None => ((of.iter_var.as_str(), value), None),
                Some(second) => ((of.iter_var.as_str(), Part::Computed), Some((second, value))),
            };
            self.bound.extend(
                [Some((of.accu_var.as_str(), Part::Other)), Some(first), second].into_iter().flatten(),
            );
            let sound = self.all([&of.loop_cond, &of.loop_step, &of.result]);
            self.bound.truncate(before);
            sound
        })
    }

    /// Returns the part for which an expression stands.
    fn part(&self, expression: &Expr) -> Part<'a> {
        match expression {
            Expr::Ident(name) => {
                let bound = self.bound.iter().rev().find(|(known, _)| known == name);
                bound.map_or(Part::Other, |(_, part)| *part)
            }
            Expr::Select(select) if !select.test => match self.part(&select.operand.expr) {
                Part::Known(value) => value.get(&select.field).map_or(Part::Missing, Part::Known),
                other => other,
            },
            Expr::Call(call) if call.func_name == operators::INDEX => match call.args.as_slice() {
                [of, key] => self.item(self.part(&of.expr), &key.expr),
                _ => Part::Computed,
            },
            Expr::Literal(_) => Part::Other,
            _ => Part::Computed,
        }
    }

    /// Returns the item of a part at a key.
    fn item(&self, of: Part<'a>, key: &Expr) -> Part<'a> {
        let Part::Known(value) = of else { return of };
        let item = match key {
            Expr::Literal(LiteralValue::String(key)) => value.get(key.inner()),
            Expr::Literal(LiteralValue::Int(place)) => {
                usize::try_from(*place.inner()).ok().and_then(|place| value.get(place))
            }
            _ => return Part::Computed,
        };
        item.map_or(Part::Missing, Part::Known)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Expression, Moment};
    use super::*;
    use crate::request::Call;

    fn expression(text: &str) -> Expression {
        Expression::try_from(text.to_owned()).unwrap()
    }

    /// Such a condition was accepted and never had a value.
    #[test]
    fn field_of_a_computed_value_is_found_and_has_no_value() {
        for (text, field) in [
            ("args[args.key].name == 'x'", "name"),
            ("args['a' + args.key].name == 'x'", "name"),
            ("has(args[args.key].name)", "name"),
            ("args.names.all(n, args.by[n].open)", "open"),
            ("[args.a, args.b].exists(x, x.open)", "open"),
            ("args.list.filter(x, x.open == true)[0].name == 'x'", "name"),
            ("args.list.map(x, x.name)[0].first == 'x'", "first"),
            ("(args.flag == true ? args.a : args.b).name == 'x'", "name"),
        ] {
            assert_eq!(of_computed(&expression(text).program.expression().expr), Some(field), "{text}");
            let object = serde_json::json!({"name": "x", "first": "x", "open": true});
            let arguments = serde_json::json!({
                "key": "a", "names": ["a"], "flag": true, "a": object, "b": object, "aa": object,
                "by": {"a": object}, "list": [object],
            });
            let call = Call { method: None, tool: None, arguments };
            assert_eq!(expression(text).evaluate(&Moment::default(), None, Some(&call)), None, "{text}");
        }
        for text in [
            "args.a.name == 'x' && args['b'].name == 'x' && args.list[0].name == 'x'",
            "args.list.all(x, x.name == 'x')",
            "args[args.key] == 'x'",
            "('a' + args.key) in args",
            "args.by.all(key, key.startsWith('a'))",
            "task[args.key].name == 'x' && request.headers[args.key] == 'x'",
        ] {
            assert_eq!(of_computed(&expression(text).program.expression().expr), None, "{text}");
        }
    }
}
