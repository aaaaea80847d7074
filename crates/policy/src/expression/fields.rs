//! Finds fields that a variable does not have. A condition on one never has a value.
//!
//! The fields are those of an example of each variable, converted as the values are by which conditions are evaluated.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use kube_cel::cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};
use kube_cel::cel::objects::Key;
use kube_cel::cel::{Value, to_value};

use super::children::children;
use super::{Facts, Identity, Moment, Session};
use crate::request::{Path, Request};

/// A field that a variable, or a part of it, does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownField {
    /// The variable or its part, such as `sandbox`.
    of: String,
    /// The field.
    field: String,
    /// Fields that it has, sorted.
    known: Vec<String>,
}

impl fmt::Display for UnknownField {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownField { of, field, known } = self;
        write!(formatter, "{of} has no field {field:?}; ")?;
        match known.is_empty() {
            true => write!(formatter, "{of} is a value without fields"),
            false => write!(formatter, "the fields are {}", known.join(", ")),
        }
    }
}

/// Returns a field that does not exist. Fields of `task` and `args`, labels and headers may have any name. A field whose name
/// is computed is not judged.
pub(super) fn unknown(expression: &Expr) -> Option<UnknownField> {
    Scope::default().first(expression, &|scope, part| match part {
        Expr::Select(select) => scope.judge(&select.operand.expr, &select.field),
        Expr::Call(call) => {
            let (of, key) = match (call.func_name.as_str(), call.args.as_slice()) {
                (operators::INDEX, [of, key]) | (operators::IN, [key, of]) => (of, key),
                _ => return None,
            };
            scope.judge(&of.expr, &literal(&key.expr)?)
        }
        _ => None,
    })
}

/// Returns the headers of requests that an expression reads, in the form that has no `_`; `None` if they may be any.
pub(super) fn headers(expression: &Expr) -> Option<Arc<[String]>> {
    let is_request = |of: &Expr| matches!(of, Expr::Ident(name) if name == "request");
    let are_headers = |of: &Expr| matches!(of, Expr::Select(select) if select.field == "headers" && is_request(&select.operand.expr));
    let names = RefCell::new(Vec::new());
    let add = |name: &str| names.borrow_mut().push(name.replace('_', "-"));
    let all = super::count(expression, |part| are_headers(part));
    let of_request = super::count(expression, |part| is_request(part));
    let fields = super::count(
        expression,
        |part| matches!(part, Expr::Select(select) if is_request(&select.operand.expr)),
    );
    super::count(expression, |part| {
        match part {
            Expr::Select(select) if are_headers(&select.operand.expr) => add(&select.field),
            Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
                (operators::INDEX, [of, key]) | (operators::IN, [key, of]) if are_headers(&of.expr) => {
                    literal(&key.expr).iter().for_each(|name| add(name));
                }
                _ => {}
            },
            _ => {}
        }
        false
    });
    // The request as a whole, or a part of it whose name is computed, may be its headers.
    let names = names.into_inner();
    (names.len() == all && of_request == fields).then(|| names.into())
}

/// A place in an expression.
#[derive(Default)]
pub(super) struct Scope<'a> {
    /// Variables of the loops around the place. They hide others of the same name.
    loops: Vec<&'a str>,
}

impl<'a> Scope<'a> {
    /// Returns what `judge` finds first of an expression and those inside of it.
    pub(super) fn first<T>(
        &mut self,
        expression: &'a Expr,
        judge: &impl Fn(&Scope<'a>, &'a Expr) -> Option<T>,
    ) -> Option<T> {
        let found = judge(self, expression);
        if found.is_some() {
            return found;
        }
        let Expr::Comprehension(of) = expression else { return self.all(children(expression), judge) };
        let outside = self.all([&of.iter_range, &of.accu_init], judge);
        let before = self.loops.len();
        self.loops.extend([of.iter_var.as_str(), of.accu_var.as_str()]);
        self.loops.extend(of.iter_var2.as_deref());
        let inside = outside.or_else(|| self.all([&of.loop_cond, &of.loop_step, &of.result], judge));
        self.loops.truncate(before);
        inside
    }

    fn all<T>(
        &mut self,
        expressions: impl IntoIterator<Item = &'a IdedExpr>,
        judge: &impl Fn(&Scope<'a>, &'a Expr) -> Option<T>,
    ) -> Option<T> {
        expressions.into_iter().find_map(|part| self.first(&part.expr, judge))
    }

    /// Returns the field unless what it is taken from may have it.
    fn judge(&self, of: &Expr, field: &str) -> Option<UnknownField> {
        let (of, value) = self.known(of)?;
        let known = match fields(&value) {
            // Its keys are the sandbox's.
            Some(names) if names.is_empty() => return None,
            Some(names) if names.iter().any(|name| name == field) => return None,
            Some(names) => names,
            None => Vec::new(),
        };
        Some(UnknownField { of, field: field.to_owned(), known })
    }

    /// Returns the text and an example of the value of a variable or of a part of it.
    pub(super) fn known(&self, expression: &Expr) -> Option<(String, Value)> {
        let (of, field) = match expression {
            Expr::Ident(name) if self.loops.contains(&name.as_str()) => return None,
            Expr::Ident(name) => return Some((name.clone(), example(name)?)),
            Expr::Select(select) if !select.test => (&select.operand.expr, select.field.clone()),
            Expr::Call(call) if call.func_name == operators::INDEX => match call.args.as_slice() {
                [of, key] => (&of.expr, literal(&key.expr)?),
                _ => return None,
            },
            _ => return None,
        };
        let (of, value) = self.known(of)?;
        let Value::Map(map) = &value else { return None };
        let value = map.map.get(&Key::from(field.clone()))?.clone();
        Some((format!("{of}.{field}"), value))
    }
}

/// Returns the text of a literal key; `None` for one that is computed.
pub(super) fn literal(key: &Expr) -> Option<String> {
    match key {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner().to_owned()),
        Expr::Literal(LiteralValue::Int(number)) => Some(number.inner().to_string()),
        Expr::Literal(LiteralValue::Boolean(value)) => Some(value.inner().to_string()),
        _ => None,
    }
}

/// Returns the names of the fields of a value, sorted; `None` for a value without fields.
fn fields(value: &Value) -> Option<Vec<String>> {
    let Value::Map(map) = value else { return None };
    let mut names: Vec<String> = map.map.keys().map(ToString::to_string).collect();
    names.sort_unstable();
    Some(names)
}

/// Returns an example of a variable: its fields have these names and types whatever their values are. `None` for a variable
/// with any fields.
fn example(variable: &str) -> Option<Value> {
    match variable {
        "user" => Some(Facts { user: Some(String::new()), ..Facts::default() }.user_value()),
        "sandbox" => to_value(Identity::default()).ok(),
        "session" => to_value(Session::default()).ok(),
        "now" => Some(Moment::default().now()),
        "request" => {
            let path = Path::read("/").ok()?;
            let request = Request {
                host: "",
                port: 0,
                method: "",
                path: &path,
                query: "",
                headers: Vec::new(),
                websocket: false,
                tls: true,
                length: None,
                calls: None,
            };
            to_value(request.views().next()?).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Expression, VARIABLES};
    use super::*;

    fn found(text: &str) -> Option<String> {
        let expression = Expression::try_from(text.to_owned()).unwrap();
        expression.unknown_field().map(|field| field.to_string())
    }

    #[test]
    fn field_that_a_variable_does_not_have_is_named_with_those_it_has() {
        let session = "session has no field \"anomaly\"; the fields are bytesOut, denials, requests";
        let sandbox = "sandbox has no field \"lables\"; the fields are labels, name, namespace";
        let denials = "session.denials has no field \"x\"; session.denials is a value without fields";
        for (text, expected) in [
            ("session.anomaly < 3", session),
            ("session['anomaly'] < 3", session),
            ("has(session.anomaly) && session.denials < 3", session),
            ("'anomaly' in session", session),
            ("task.risk < 2 || !(session.anomaly + 1 > 3)", session),
            ("args.list.all(x, x < session.anomaly)", session),
            ("[session.anomaly].exists(x, x > 1)", session),
            ("{'a': session.anomaly} == {'a': 1}", session),
            ("session.anomaly.size() > 1", session),
            ("task[session.anomaly] == 'x'", session),
            ("sandbox.lables.app == 'x'", sandbox),
            ("sandbox.lables['app'] == 'x'", sandbox),
            ("has(sandbox.lables.app)", sandbox),
            ("session.denials.x == 1", denials),
            ("session['denials'].x == 1", denials),
            ("user.groups == 'x'", "user has no field \"groups\"; the fields are name"),
            ("now.hour > 8", "now has no field \"hour\"; now is a value without fields"),
            (
                "request.url == 'x'",
                "request has no field \"url\"; the fields are headers, host, method, path, port, query",
            ),
            (
                "request[0] == 'x'",
                "request has no field \"0\"; the fields are headers, host, method, path, port, query",
            ),
        ] {
            assert_eq!(found(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn fields_that_exist_or_may_have_any_name_pass() {
        for text in [
            "task.anything == 'x' && has(task.other) && 'y' in task",
            "args.a.b['c'] == 1 || args['d']",
            "sandbox.labels.app == 'x' && sandbox.labels['a/b'] == 'y' && 'z' in sandbox.labels",
            "request.headers['x-a'] == 'x' && has(request.headers.host)",
            "now.getHours() > 8 && now > timestamp('2024-01-01T00:00:00Z')",
            "session[task.counter] < 3",
            "args.list.all(session, session.anomaly < 3)",
            "['denials'].all(name, session[name] < 3)",
            "sandbox.labels.exists(key, key == 'x')",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    #[test]
    fn every_known_field_has_a_value() {
        let facts = Facts { user: Some("a".to_owned()), ..Facts::default() };
        let moment = Moment { facts: &facts, ..Moment::default() };
        let path = Path::read("/").unwrap();
        let request = Request {
            host: "a.example",
            port: 443,
            method: "GET",
            path: &path,
            query: "",
            headers: vec![("a", "b")],
            websocket: false,
            tls: true,
            length: None,
            calls: None,
        };
        let mut names = Vec::new();
        for variable in VARIABLES {
            let fields = example(variable).and_then(|value| fields(&value)).unwrap_or_default();
            for field in fields {
                let text = format!("has({variable}.{field}) && {variable}.{field} == {variable}.{field}");
                let expression = Expression::try_from(text.clone()).unwrap();
                assert_eq!(expression.unknown_field(), None, "{text}");
                assert_eq!(expression.evaluate(&moment, Some(&request), None), Some(true), "{text}");
                names.push(format!("{variable}.{field}"));
            }
        }
        // Those of docs/policy.md.
        let documented = [
            "user.name",
            "sandbox.labels",
            "sandbox.name",
            "sandbox.namespace",
            "session.bytesOut",
            "session.denials",
            "session.requests",
            "request.headers",
            "request.host",
            "request.method",
            "request.path",
            "request.port",
            "request.query",
        ];
        assert_eq!(names, documented);
    }
}
