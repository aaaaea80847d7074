//! The expressions inside of an expression.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};

/// Returns the expressions directly inside of one, in their order. Those of a loop are left to the caller, since its variables
/// hide others.
pub(super) fn children(expression: &Expr) -> Vec<&IdedExpr> {
    match expression {
        Expr::Select(select) => vec![&select.operand],
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| of_entry(&entry.expr)).collect(),
        Expr::Struct(of) => of.entries.iter().flat_map(|entry| of_entry(&entry.expr)).collect(),
        Expr::Comprehension(_) | Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

/// Returns the key and the value of an entry.
fn of_entry(entry: &EntryExpr) -> impl Iterator<Item = &IdedExpr> {
    let (key, value) = match entry {
        EntryExpr::StructField(field) => (None, &field.value),
        EntryExpr::MapEntry(entry) => (Some(&entry.key), &entry.value),
    };
    key.into_iter().chain([value])
}
