//! Conditions in CEL, the expression language of Kubernetes.
//!
//! Code inside a sandbox can influence only `request` and `args`. An expression that cannot be evaluated has no value; the
//! rule then counts as the stricter one of the two.

mod children;
mod constants;
mod equal;
mod fields;
mod functions;
mod missing;
mod selects;
mod truth;
mod work;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr, operators};
use kube_cel::cel::objects::Map;
use kube_cel::cel::{Context, Program, Value, to_value};
use serde::{Deserialize, Serialize};

pub use fields::UnknownField;
pub(crate) use work::Work;

use crate::host::shown;
use crate::request::{Call, Request, View};

/// Maximum bytes of an expression.
pub(crate) const LENGTH: usize = 1024;
/// Maximum values in the arguments of a call. A condition on more has no value.
const NODES: usize = 10_000;
/// The same where the condition has a loop, for all calls of a body together.
pub(crate) const LOOP_NODES: usize = 500;
/// Maximum additions and subtractions. The difference of two times is at most ten thousand years; with a loop, a sum of such
/// differences stands in a further sum. The interpreter panics when it adds 262,000 years to a time.
const ADDITIONS: usize = 12;
/// Fractions below it that are whole are numbers without rounding.
const WHOLE: f64 = (1_u64 << 53) as f64;
/// Maximum depth of brackets. The parser is recursive.
const DEPTH: usize = 16;
/// Names that an expression can use.
const VARIABLES: [&str; 7] = ["task", "user", "sandbox", "session", "now", "request", "args"];

/// Reason why a text is not an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExpression {
    /// Too long or too deep.
    #[error("{0:?}: an expression has at most {LENGTH} bytes and brackets {DEPTH} deep")]
    TooLarge(String),
    /// Not CEL.
    #[error("{0:?} is not a CEL expression: {1}")]
    Syntax(String, String),
    /// Several loops.
    #[error("{0:?} has several loops; at most one of all, exists, exists_one, map and filter")]
    Loops(String),
    /// Unsigned numbers.
    #[error("{0:?} has an unsigned number, which no value equals; write it without `u`")]
    Unsigned(String),
    /// A variable that does not exist.
    #[error(
        "{0:?}: there is no variable {1:?}; there are task, user, sandbox, session, now, request and args"
    )]
    Variable(String, String),
    /// A function that does not exist.
    #[error("{0:?}: there is no function {1:?}")]
    Function(String, String),
    /// Many sums.
    #[error("{0:?} has more than {ADDITIONS} signs + and -")]
    Additions(String),
    /// Objects of a type, which the interpreter does not have.
    #[error(
        "{0:?} makes an object of a type, such as `T{{}}`; there are only texts, numbers, truths, lists and maps"
    )]
    Object(String),
    /// Never true or false.
    #[error("{0:?} is never true or false; write a comparison, such as `session.denials < 3`")]
    NotTruth(String),
}

/// Expression that is true or false.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expression {
    text: String,
    program: Arc<Program>,
    /// The same with other operators for equality, to be evaluated.
    evaluated: Arc<IdedExpr>,
    variables: Arc<[String]>,
    /// Headers of requests that it reads; `None` if that may be any.
    headers: Option<Arc<[String]>>,
    /// It has a loop, whose time grows with the square of the values.
    loops: bool,
}

impl Expression {
    /// Returns true if the expression uses this variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.variables.iter().any(|name| name == variable)
    }

    /// Returns a field that does not exist, on which the expression depends. It then never has a value, or the field has no
    /// effect.
    pub fn unknown_field(&self) -> Option<UnknownField> {
        fields::unknown(&self.program.expression().expr)
    }

    /// Returns why a part of the expression never holds, or never has a value: it compares values of different types, or has a
    /// constant without a value.
    pub(crate) fn mistake(&self) -> Option<String> {
        constants::mistake(&self.program.expression().expr)
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the parts of variables that the expression takes and that do not exist, as it writes them. Without a value, it
    /// may lack these; also one that it does not need may be among them.
    pub(crate) fn missing(&self, moment: &Moment<'_>, request: Option<&Request<'_>>) -> Vec<String> {
        let view = request.and_then(|request| request.views().next());
        missing::missing(&self.program.expression().expr, |name| variable(name, moment, view.as_ref()))
    }

    /// Returns a field of a computed part of `args`, which never has a value.
    pub(crate) fn field_of_computed(&self) -> Option<&str> {
        let expression = &self.program.expression().expr;
        self.uses("args").then(|| selects::of_computed(expression)).flatten()
    }

    /// Evaluates the expression; `None` if it has no value that is true or false, or different ones in the ways in which servers
    /// read the request: its path, or a header that it has several times.
    pub fn evaluate(
        &self,
        moment: &Moment<'_>,
        request: Option<&Request<'_>>,
        call: Option<&Call>,
    ) -> Option<bool> {
        let Some(request) = request.filter(|_| self.uses("request")) else {
            return self.value(moment, None, call);
        };
        if request.has_ambiguous_headers(self.headers.as_deref()) {
            return None;
        }
        let mut values = request.views().map(|view| self.value(moment, Some(&view), call));
        let first = values.next()?;
        values.all(|value| value == first).then_some(first)?
    }

    /// Returns true if it has a loop, whose time grows with the square of the values.
    pub(crate) fn has_loop(&self) -> bool {
        self.loops
    }

    /// Returns true if facts and headers have too many values for a loop.
    fn has_many(&self, moment: &Moment<'_>, request: Option<&View<'_>>) -> bool {
        let facts = moment.facts.task.len() + moment.facts.sandbox.labels.len();
        self.loops && facts + request.map_or(0, View::headers) > LOOP_NODES
    }

    /// Returns the value for a request in one of its ways.
    fn value(&self, moment: &Moment<'_>, request: Option<&View<'_>>, call: Option<&Call>) -> Option<bool> {
        if self.has_many(moment, request) {
            return None;
        }
        let mut context = Context::default();
        functions::add(&mut context);
        equal::add(&mut context);
        let mut set = |name: &str, value: Value| context.add_variable_from_value(name, value);
        // Only what the expression uses: the conversion costs more than the evaluation.
        for name in VARIABLES.iter().filter(|name| self.uses(name)) {
            if let Some(value) = variable(name, moment, request) {
                set(name, value);
            }
        }
        if let (Some(call), true) = (call, self.uses("args")) {
            let (values, bytes) = size(&call.arguments);
            let units = work::EVALUATION + values * work::VALUE + bytes;
            if values > if self.has_loop() { LOOP_NODES } else { NODES } || !work::take(units) {
                return None;
            }
            // A call without arguments has no field of them.
            let none = serde_json::Value::Object(serde_json::Map::new());
            let arguments = if call.arguments.is_null() { &none } else { &call.arguments };
            if !selects::are_of_objects(&self.program.expression().expr, arguments) {
                return None;
            }
            set("args", signed(to_value(arguments).ok()?));
        }
        match Value::resolve(&self.evaluated, &context) {
            Ok(Value::Bool(value)) => Some(value),
            _ => None,
        }
    }
}

/// Returns the value of a variable; `None` for one that has none here.
fn variable(name: &str, moment: &Moment<'_>, request: Option<&View<'_>>) -> Option<Value> {
    match name {
        "task" => Some(moment.facts.task_value()),
        "user" => Some(moment.facts.user_value()),
        "sandbox" => to_value(&moment.facts.sandbox).ok(),
        "session" => to_value(moment.session).ok().map(signed),
        "now" => Some(moment.now()),
        "request" => request.and_then(|view| to_value(view).ok().map(signed)),
        _ => None,
    }
}

impl TryFrom<String> for Expression {
    type Error = InvalidExpression;

    fn try_from(text: String) -> Result<Expression, InvalidExpression> {
        if text.len() > LENGTH || depth(&text) > DEPTH {
            return Err(InvalidExpression::TooLarge(shown(&text)));
        }
        if is_unsigned(&text) {
            return Err(InvalidExpression::Unsigned(shown(&text)));
        }
        let program = Program::compile(&text).map_err(|error| {
            let reason = error.to_string();
            InvalidExpression::Syntax(shown(&text), reason.lines().next().unwrap_or_default().to_owned())
        })?;
        // A loop within a loop takes the time of both multiplied.
        let loops = count(&program.expression().expr, |part| matches!(part, Expr::Comprehension(_)));
        if loops > 1 {
            return Err(InvalidExpression::Loops(shown(&text)));
        }
        let variables: Vec<String> =
            program.references().variables().into_iter().map(str::to_owned).collect();
        // `args.exists(x, x > 1)` declares a variable of its own.
        let dense: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let declared = |name: &String| dense.contains(&format!("({name},"));
        if let Some(name) =
            variables.iter().find(|name| !VARIABLES.contains(&name.as_str()) && !declared(name))
        {
            return Err(InvalidExpression::Variable(shown(&text), name.clone()));
        }
        if let Some(name) = truth::unknown_function(&program) {
            return Err(InvalidExpression::Function(shown(&text), name));
        }
        let adds =
            |call: &CallExpr| [operators::ADD, operators::SUBSTRACT].contains(&call.func_name.as_str());
        let additions =
            count(&program.expression().expr, |part| matches!(part, Expr::Call(call) if adds(call)));
        if additions > ADDITIONS {
            return Err(InvalidExpression::Additions(shown(&text)));
        }
        // The interpreter panics at one.
        let is_object = |part: &Expr| matches!(part, Expr::Struct(_) | Expr::Unspecified);
        if count(&program.expression().expr, is_object) > 0 {
            return Err(InvalidExpression::Object(shown(&text)));
        }
        if !truth::may_be_truth(&program.expression().expr) {
            return Err(InvalidExpression::NotTruth(shown(&text)));
        }
        let headers = fields::headers(&program.expression().expr);
        let loops = loops > 0;
        let mut evaluated = program.expression().clone();
        equal::replace(&mut evaluated);
        let (program, evaluated) = (Arc::new(program), Arc::new(evaluated));
        Ok(Expression { program, evaluated, variables: variables.into(), headers, loops, text })
    }
}

impl From<Expression> for String {
    fn from(expression: Expression) -> String {
        expression.text
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(formatter)
    }
}

/// Returns a value whose whole numbers are signed, as literals are: an unsigned number and a signed one are never equal, nor
/// are a fraction and a whole number.
fn signed(value: Value) -> Value {
    match value {
        Value::UInt(number) => i64::try_from(number).map_or(Value::UInt(number), Value::Int),
        Value::Float(number) if number.fract() == 0.0 && number.abs() < WHOLE => Value::Int(number as i64),
        Value::List(list) => Value::List(Arc::new(list.iter().cloned().map(signed).collect())),
        Value::Map(map) => {
            let entries = map.map.iter().map(|(key, value)| (key.clone(), signed(value.clone())));
            Value::Map(Map { map: Arc::new(entries.collect()) })
        }
        other => other,
    }
}

/// Returns the number of such parts of an expression.
fn count(expression: &Expr, is_one: impl Fn(&Expr) -> bool) -> usize {
    let found = std::cell::Cell::new(0);
    let count = |part: &Expr| found.set(found.get() + usize::from(is_one(part)));
    let _ = fields::Scope::default().first(expression, &|_, part| {
        count(part);
        None::<()>
    });
    found.get()
}

/// Returns the number of values in a value, and the bytes of its texts.
fn size(value: &serde_json::Value) -> (usize, usize) {
    let sum = |all: (usize, usize), (values, bytes): (usize, usize)| (all.0 + values, all.1 + bytes);
    match value {
        serde_json::Value::Array(list) => list.iter().map(size).fold((1, 0), sum),
        serde_json::Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| sum(size(value), (0, key.len())));
            entries.fold((1, 0), sum)
        }
        serde_json::Value::String(text) => (1, text.len()),
        _ => (1, 0),
    }
}

/// Returns the number of values in a value.
pub(crate) fn nodes(value: &serde_json::Value) -> usize {
    size(value).0
}

/// Returns true if a text has unsigned numbers, which equal none of the values.
fn is_unsigned(text: &str) -> bool {
    let bytes = text.as_bytes();
    let number = bytes.windows(2).enumerate().any(|(at, pair)| {
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        pair[0].is_ascii_digit() && matches!(pair[1], b'u' | b'U') && !bytes.get(at + 2).is_some_and(word)
    });
    number || text.contains("uint(")
}

/// Returns how deep operators and brackets of a text nest at most, whether or not they match.
fn depth(text: &str) -> usize {
    // Signs and conditions nest too: `!!!!x`, `a ? b : c ? d : e`.
    let nests = text.bytes().filter(|byte| matches!(byte, b'!' | b'-' | b'?')).count();
    let (mut open, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest.max(nests / 8)
}

/// Facts about a sandbox. Code inside can change none of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Attributes of the task: annotations `attr.policy.hutch.dev/NAME` of the claim.
    pub task: BTreeMap<String, String>,
    /// Name of who created the sandbox or its claim.
    #[serde(default)]
    pub user: Option<String>,
    /// The sandbox.
    pub sandbox: Identity,
}

/// Name of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

impl Facts {
    /// Returns the attributes; one that is a whole number is a number, so that it can be compared.
    fn task_value(&self) -> Value {
        let value =
            |text: &String| text.parse::<i64>().map_or_else(|_| Value::from(text.clone()), Value::Int);
        let map: std::collections::HashMap<String, Value> =
            self.task.iter().map(|(name, text)| (name.clone(), value(text))).collect();
        Value::from(map)
    }

    /// Returns the creator. An unknown one has no name, so a condition on it has no value.
    fn user_value(&self) -> Value {
        let name = self.user.iter().map(|name| ("name".to_owned(), Value::from(name.clone())));
        Value::from(name.collect::<std::collections::HashMap<String, Value>>())
    }
}

/// Counters of a sandbox since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Refused connections and requests.
    pub denials: u64,
    /// Connections and requests that were allowed.
    pub requests: u64,
    /// Bytes that the sandbox has sent.
    pub bytes_out: u64,
}

/// Facts at the time of a decision.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// Facts about the sandbox.
    pub facts: &'a Facts,
    /// Its counters.
    pub session: Session,
    /// Seconds since 1970.
    pub seconds: i64,
}

/// Facts of a sandbox about which nothing is known.
static UNKNOWN: Facts = Facts {
    user: None,
    task: BTreeMap::new(),
    sandbox: Identity { name: String::new(), namespace: String::new(), labels: BTreeMap::new() },
};

impl Default for Moment<'static> {
    /// Returns the moment of a sandbox about which nothing is known, in 1970.
    fn default() -> Moment<'static> {
        Moment { facts: &UNKNOWN, session: Session::default(), seconds: 0 }
    }
}

impl Moment<'_> {
    fn now(&self) -> Value {
        let time = chrono::DateTime::from_timestamp(self.seconds, 0).unwrap_or_default();
        Value::Timestamp(time.fixed_offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(text: &str) -> Result<Expression, String> {
        Expression::try_from(text.to_owned()).map_err(|error| error.to_string())
    }

    fn evaluate(text: &str) -> Option<bool> {
        let facts = Facts {
            task: [("risk", "2"), ("type", "review")].map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
            user: Some("alice".into()),
            sandbox: Identity { name: "a".into(), namespace: "n".into(), labels: BTreeMap::new() },
        };
        let session = Session { denials: 3, ..Session::default() };
        let moment = Moment { facts: &facts, session, seconds: 1_700_000_000 };
        expression(text).unwrap().evaluate(&moment, None, None)
    }

    #[test]
    fn expression_reads_the_facts() {
        for (text, expected) in [
            ("task.risk <= 2", Some(true)),
            ("task.risk < 2", Some(false)),
            ("task.type == 'review' && sandbox.namespace == 'n'", Some(true)),
            ("user.name == 'alice'", Some(true)),
            ("user.name == 'bob'", Some(false)),
            ("session.denials > 2", Some(true)),
            ("session.denials == 3 && session.requests == 0 && session.denials in [3]", Some(true)),
            ("session.denials != 3", Some(false)),
            ("now < timestamp('2024-01-01T00:00:00Z')", Some(true)),
            ("now.getHours() >= 0", Some(true)),
            ("task.missing == 'x'", None),
            ("task.risk == 'x'", Some(false)),
            ("args.flag", None),
            ("request.method == 'GET'", None),
            ("true", Some(true)),
            ("sandbox.labels.exists(key, key == 'x')", Some(false)),
        ] {
            assert_eq!(evaluate(text), expected, "{text}");
        }
    }

    #[test]
    fn parts_that_do_not_exist_are_named_without_values() {
        let labels = [("app".to_owned(), "secret".to_owned())].into();
        let facts = Facts {
            task: [("risk".to_owned(), "2".to_owned())].into(),
            user: None,
            sandbox: Identity { name: "a".into(), namespace: "n".into(), labels },
        };
        let moment = Moment { facts: &facts, ..Moment::default() };
        let path = crate::request::Path::read("/").unwrap();
        let request = Request {
            host: "a.example",
            port: 443,
            method: "GET",
            path: &path,
            query: "",
            headers: vec![("x-key", "secret")],
            websocket: false,
            tls: true,
            length: None,
            calls: None,
        };
        for (text, expected) in [
            ("task.risk <= 2", ""),
            ("task.missing == 'x' || task.missing == 'y'", "task.missing"),
            ("user.name == 'x' && task['a b'] == 1", "user.name task[\"a b\"]"),
            ("sandbox.labels.tier == 'x' && sandbox.labels['app'] == 'y'", "sandbox.labels.tier"),
            ("has(task.other) && task.risk > 1", ""),
            ("request.headers['x-other'] == request.headers['x-key']", "request.headers[\"x-other\"]"),
            ("task[request.headers['x-key']] == 1", ""),
            ("sandbox.labels.all(task, task.x == 1) || task.y == 1", "task.y"),
            ("args.a.b == 1", "args"),
            ("session.denials < 3 && now > timestamp('2024-01-01T00:00:00Z')", ""),
        ] {
            let found = expression(text).unwrap().missing(&moment, Some(&request)).join(" ");
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn condition_about_an_unknown_creator_has_no_value() {
        for text in ["user.name == 'bob'", "user.name != 'bob'"] {
            assert_eq!(expression(text).unwrap().evaluate(&Moment::default(), None, None), None, "{text}");
        }
    }

    #[test]
    fn path_with_parameters_has_a_value_only_if_both_readings_agree() {
        let value = |text: &str, path: &str| {
            let path = crate::request::Path::read(path).unwrap();
            let request = Request {
                host: "a.example",
                port: 443,
                method: "GET",
                path: &path,
                query: "",
                headers: Vec::new(),
                websocket: false,
                tls: true,
                length: None,
                calls: None,
            };
            expression(text).unwrap().evaluate(&Moment::default(), Some(&request), None)
        };
        assert_eq!(value("request.path == '/admin'", "/admin"), Some(true));
        assert_eq!(value("request.path == '/admin'", "/admin;x"), None);
        assert_eq!(value("request.path.startsWith('/admin')", "/admin;x"), Some(true));
        assert_eq!(value("request.path == '/admin'", "/other;x"), Some(false));
        assert_eq!(value("request.method == 'GET'", "/other;x"), Some(true));
    }

    #[test]
    fn numbers_of_arguments_equal_literals() {
        let facts = Facts::default();
        let moment = Moment { facts: &facts, session: Session::default(), seconds: 0 };
        let arguments = serde_json::json!({"n": 4, "f": 4.0, "h": 4.5, "m": -4, "list": [1, {"x": 2}]});
        let call = Call { method: None, tool: None, arguments };
        for text in [
            "args.n == 4 && args.f == 4 && args.m == -4 && args.h == 4.5 && args.h > 4",
            "args.n in [4] && args.list[0] == 1 && args.list[1].x == 2",
            "!(args.n != 4)",
        ] {
            assert_eq!(expression(text).unwrap().evaluate(&moment, None, Some(&call)), Some(true), "{text}");
        }
    }

    /// Regression: the interpreter takes a field of what has no fields for `false`, so that each of these was true.
    #[test]
    fn field_of_arguments_without_fields_has_no_value() {
        let facts = Facts::default();
        let moment = Moment { facts: &facts, session: Session::default(), seconds: 0 };
        let value = |text: &str, arguments: serde_json::Value| {
            let call = Call { method: None, tool: None, arguments };
            expression(text).unwrap().evaluate(&moment, None, Some(&call))
        };
        let shapes = r#"[null, [], ["bad"], "a", 1, true, {}, {"a": "x"}, {"a": ["bad"]}, {"a": null}, {"list": ["x"]},
            {"list": [{}, 1]}, {"list": {"k": 1}}]"#;
        let shapes: Vec<serde_json::Value> = serde_json::from_str(shapes).unwrap();
        for arguments in shapes {
            for text in [
                "args.q != 'bad'",
                "!(args.q == '')",
                "!(args.q in ['bad'])",
                "args.a.b != 'bad'",
                "args['a'].b != 'bad'",
                "args.list[0].b.c != 'bad'",
                "args.list.exists(x, x.y != 'bad')",
                "[0].exists(i, args.list[i].y != 'bad')",
            ] {
                assert_eq!(value(text, arguments.clone()), None, "{text} {arguments}");
            }
        }
        for (text, arguments, expected) in [
            ("args.q != 'bad'", serde_json::json!({"q": "good"}), true),
            ("args.a.b != 'bad'", serde_json::json!({"a": {"b": "bad"}}), false),
            ("has(args.force)", serde_json::json!({}), false),
            ("has(args.force)", serde_json::Value::Null, false),
            ("has(args.a) && args.a.b == 1", serde_json::json!({}), false),
            ("args.list.all(x, x.y == 1)", serde_json::json!({"list": [{"y": 1}, {"y": 1}]}), true),
            ("args.map.exists(k, k == 'a')", serde_json::json!({"map": {"a": 1}}), true),
            ("args.list.exists(x, x == 1)", serde_json::json!({"list": [1]}), true),
            ("args[0] == 'a'", serde_json::json!(["a"]), true),
        ] {
            assert_eq!(value(text, arguments), Some(expected), "{text}");
        }
    }

    /// The interpreter panics at what is added up here, which ends the whole process.
    #[test]
    fn time_beyond_all_bounds_has_no_value() {
        let moment = Moment::default();
        for long in ["9e9h".repeat(1000), "9e9h".repeat(4), "1s".repeat(40)] {
            for text in ["now + duration(args.a) > now", "now - duration(args.a) < now"] {
                let call = Call { method: None, tool: None, arguments: serde_json::json!({"a": long}) };
                assert_eq!(expression(text).unwrap().evaluate(&moment, None, Some(&call)), None, "{text}");
            }
        }
        let sum = format!("now{} > now", " + duration('8765999h')".repeat(12));
        assert_eq!(expression(&sum).unwrap().evaluate(&moment, None, None), Some(true));
        let years = "timestamp('9999-12-31T00:00:00Z') - timestamp('0001-01-01T00:00:00Z')";
        // Each number of sums outside and inside of the loop.
        for outside in 1..ADDITIONS {
            let sum = |inside| {
                let (list, sum) = (vec![years; outside].join(" + "), vec!["d"; inside].join(" + "));
                expression(&format!("[{list}].all(d, now + ({sum}) > now)"))
            };
            // Signs: two for each difference but the first, and one for each `d`.
            let Some(inside) = (ADDITIONS + 1).checked_sub(2 * outside).filter(|count| *count > 0) else {
                break;
            };
            let value = sum(inside).unwrap().evaluate(&moment, None, None);
            assert!(matches!(value, None | Some(true)), "{outside} {inside}");
            assert!(sum(inside + 1).unwrap_err().contains("signs + and -"), "{outside} {inside}");
        }
        let call = Call { method: None, tool: None, arguments: serde_json::json!({"a": ""}) };
        let value = expression("b'x'.contains(bytes(args.a))").unwrap().evaluate(&moment, None, Some(&call));
        assert_eq!(value, Some(true));
        let call = Call { method: None, tool: None, arguments: serde_json::json!({"a": "1h30m"}) };
        let value = expression("now + duration(args.a) > now").unwrap().evaluate(&moment, None, Some(&call));
        assert_eq!(value, Some(true));
    }

    /// Their time grows with the square of the values.
    #[test]
    fn loop_over_many_values_has_no_value() {
        let value = |text: &str, count: usize| {
            let call =
                Call { method: None, tool: None, arguments: serde_json::json!({"list": vec![1; count]}) };
            expression(text).unwrap().evaluate(&Moment::default(), None, Some(&call))
        };
        assert_eq!(value("args.list.all(x, x == 1)", LOOP_NODES - 2), Some(true));
        assert_eq!(value("args.list.all(x, x == 1)", LOOP_NODES), None);
        assert_eq!(value("args.list.filter(x, x == 2).size() == 0", LOOP_NODES), None);
        assert_eq!(value("args.list.size() > 1", LOOP_NODES), Some(true));
    }

    #[test]
    fn invalid_expression_is_refused_with_the_reason() {
        for (text, expected) in [
            ("task.risk <=", "is not a CEL expression"),
            ("session2 == 'x'", "no variable \"session2\""),
            ("session.anomaly2 + unknown > 1", "no variable \"unknown\""),
            ("", "is not a CEL expression"),
            ("[1].all(a, [1].all(b, true))", "several loops"),
            ("[1].all (a, true) && [1].exists\n(b, true)", "several loops"),
            ("[1].existsOne(a, [1].existsOne(b, true))", "several loops"),
            ("session.denials == 3u", "unsigned"),
            ("uint(session.denials) == 3", "unsigned"),
            ("1", "is never true or false"),
            ("'true'", "is never true or false"),
            ("task.risk", "is never true or false"),
            ("task.risk <= 2 && session.denials", "is never true or false"),
            ("verify(task.risk)", "no function \"verify\""),
            ("T{} == 1", "an object of a type"),
            ("[T{a: 1}].all(x, x == 1)", "an object of a type"),
        ] {
            let error = expression(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
        for deep in [
            format!("{}true{}", "(".repeat(400), ")".repeat(400)),
            format!("{}true", "!".repeat(900)),
            "[".repeat(900),
            "a".repeat(2000),
            format!("{}1", "-".repeat(1000)),
        ] {
            assert!(expression(&deep).is_err());
        }
    }
}
