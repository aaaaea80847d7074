//! Finds expressions that are never true or false, and so have no effect.
//!
//! Only what the text alone shows is found. Arguments of tools, and elements of lists, may have any type.

use kube_cel::cel::Program;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators};

/// Variables of which no part is true or false.
const OTHERS: [&str; 6] = ["task", "user", "sandbox", "session", "now", "request"];
/// Functions that are true or false, or may be.
const TRUTHS: [&str; 11] = [
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "hasValue",
    "max",
    "min",
    "optional.of",
    "or",
    "orValue",
    "value",
];
/// Functions that never are.
const VALUES: [&str; 19] = [
    "size",
    "string",
    "bytes",
    "double",
    "int",
    "optional.none",
    "optional.ofNonZeroValue",
    "duration",
    "timestamp",
    "getFullYear",
    "getMonth",
    "getDayOfYear",
    "getDayOfMonth",
    "getDate",
    "getDayOfWeek",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
];
/// Operators whose result is a number, a text or a list.
const ARITHMETIC: [&str; 6] = [
    operators::ADD,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::NEGATE,
];

/// Returns a function that does not exist.
pub(super) fn unknown_function(program: &Program) -> Option<String> {
    let is_operator = |name: &str| !name.starts_with(|c: char| c.is_ascii_alphabetic());
    let known = |name: &str| is_operator(name) || TRUTHS.contains(&name) || VALUES.contains(&name);
    let references = program.references();
    let mut unknown: Vec<_> = references.functions().into_iter().filter(|name| !known(name)).collect();
    unknown.sort_unstable();
    unknown.first().map(|name| (*name).to_owned())
}

/// Returns false if an expression, or an operand of it that must be true or false, never is.
pub(super) fn may_be_truth(expression: &Expr) -> bool {
    match expression {
        Expr::Literal(value) => matches!(value, LiteralValue::Boolean(_)),
        Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => false,
        Expr::Ident(name) => !OTHERS.contains(&name.as_str()),
        // `has(task.x)` is a test.
        Expr::Select(select) => select.test || !is_other(&select.operand.expr),
        Expr::Call(call) => call_may_be_truth(call),
        Expr::Comprehension(comprehension) => loop_may_be_truth(comprehension),
        Expr::Unspecified => true,
    }
}

fn call_may_be_truth(call: &CallExpr) -> bool {
    let name = call.func_name.as_str();
    match name {
        operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT | operators::CONDITIONAL => {
            call.args.iter().all(|operand| may_be_truth(&operand.expr))
        }
        operators::INDEX => !call.args.first().is_some_and(|list| is_other(&list.expr)),
        _ => !ARITHMETIC.contains(&name) && !VALUES.contains(&name),
    }
}

fn loop_may_be_truth(comprehension: &ComprehensionExpr) -> bool {
    let ComprehensionExpr { accu_var, accu_init, loop_step, result, .. } = comprehension;
    match &result.expr {
        // `all` and `exists` join truths; `map` and `filter` make lists.
        Expr::Ident(name) if name == accu_var => {
            may_be_truth(&accu_init.expr) && may_be_truth(&loop_step.expr)
        }
        other => may_be_truth(other),
    }
}

/// Returns true for a variable of which no part is true or false, and for its parts.
fn is_other(expression: &Expr) -> bool {
    match expression {
        Expr::Ident(name) => OTHERS.contains(&name.as_str()),
        Expr::Select(select) => !select.test && is_other(&select.operand.expr),
        Expr::Call(call) if call.func_name == operators::INDEX => {
            call.args.first().is_some_and(|list| is_other(&list.expr))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> bool {
        let program = Program::compile(text).unwrap();
        assert_eq!(unknown_function(&program), None, "{text}");
        may_be_truth(&program.expression().expr)
    }

    #[test]
    fn expression_that_is_never_true_or_false_is_found() {
        for text in [
            "true",
            "task.risk <= 2",
            "!(task.risk > 2)",
            "has(task.risk)",
            "!has(task.risk) || task.risk < 3",
            "args.flag",
            "args['flag'] && args.list[0]",
            "args.flag ? true : task.x == 'y'",
            "sandbox.labels.exists(key, key == 'x')",
            "args.list.all(x, x > 1)",
            "args.list.exists_one(x, x)",
            "'x' in sandbox.labels",
            "request.path.startsWith('/x') && request.path.matches('^/x')",
            "(args.a ? 1 : 2) == 1",
            "size(args.list) + 1 > 2",
            "args.list.filter(x, x > 1) == [2]",
            "now.getHours() >= 8",
            "task['risk'] == 1",
        ] {
            assert!(checked(text), "{text}");
        }
        for text in [
            "1",
            "1.5",
            "null",
            "'true'",
            "b'x'",
            "[true]",
            "{'a': true}",
            "task",
            "task.risk",
            "task['risk']",
            "sandbox.labels['x']",
            "request.headers['x']",
            "session.denials",
            "now",
            "1 + 2",
            "-session.denials",
            "size(args.list)",
            "args.list.map(x, x)",
            "args.list.filter(x, x)",
            "args.list.all(x, 1)",
            "args.list.exists(x, 'a')",
            "true && 1",
            "1 || true",
            "!task.risk",
            "args.flag ? 1 : true",
            "int(args.x)",
            "timestamp('2024-01-01T00:00:00Z')",
            "now.getHours()",
        ] {
            assert!(!checked(text), "{text}");
        }
        for text in ["foo(1)", "task.risk.bar() == 1", "args.list.all(x, baz(x))"] {
            let program = Program::compile(text).unwrap();
            assert!(unknown_function(&program).is_some(), "{text}");
        }
    }
}
