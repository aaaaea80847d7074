//! Finds parts of variables that an expression takes and that do not exist, for messages.
//!
//! Only parts with literal names are found, so that no message shows a value.

use kube_cel::cel::Value;
use kube_cel::cel::common::ast::{Expr, IdedExpr, operators};
use kube_cel::cel::objects::Key;

use super::children::children;
use super::fields::literal;

/// Returns the parts of variables that the expression takes and that do not exist, each once, in their order. `has` takes none.
/// `value` returns the value of a variable.
pub(super) fn missing(expression: &Expr, value: impl Fn(&str) -> Option<Value>) -> Vec<String> {
    let mut walk = Walk { value, loops: Vec::new(), found: Vec::new() };
    walk.expression(expression);
    walk.found
}

/// A walk through an expression.
struct Walk<'a, V> {
    value: V,
    /// Variables of the loops around the present place. They hide others of the same name.
    loops: Vec<&'a str>,
    found: Vec<String>,
}

impl<'a, V: Fn(&str) -> Option<Value>> Walk<'a, V> {
    fn expression(&mut self, expression: &'a Expr) {
        if let Some((part, None)) = self.part(expression) {
            if !self.found.contains(&part) {
                self.found.push(part);
            }
            return;
        }
        match expression {
            Expr::Comprehension(of) => {
                self.all([&of.iter_range, &of.accu_init]);
                let before = self.loops.len();
                self.loops.extend([of.iter_var.as_str(), of.accu_var.as_str()]);
                self.loops.extend(of.iter_var2.as_deref());
                self.all([&of.loop_cond, &of.loop_step, &of.result]);
                self.loops.truncate(before);
            }
            // Also of `has(a.b.c)`, which tests for `c`, and takes `a.b`.
            other => self.all(children(other)),
        }
    }

    fn all(&mut self, expressions: impl IntoIterator<Item = &'a IdedExpr>) {
        expressions.into_iter().for_each(|part| self.expression(&part.expr));
    }

    /// Returns the text and the value of a variable or of a part of it with a literal name; `None` for another expression.
    fn part(&self, expression: &Expr) -> Option<(String, Option<Value>)> {
        let (of, key) = match expression {
            Expr::Ident(name) if self.loops.contains(&name.as_str()) => return None,
            Expr::Ident(name) => return Some((name.clone(), (self.value)(name))),
            Expr::Select(select) if !select.test => (&select.operand.expr, select.field.clone()),
            Expr::Call(call) if call.func_name == operators::INDEX => match call.args.as_slice() {
                [of, key] => (&of.expr, literal(&key.expr)?),
                _ => return None,
            },
            _ => return None,
        };
        let (of, value) = self.part(of)?;
        // Without the whole there is no part, and the whole is what is missing.
        let Some(value) = value else { return Some((of, None)) };
        let value = match &value {
            Value::Map(map) => map.map.get(&Key::from(key.clone())).cloned(),
            Value::List(list) => key.parse().ok().and_then(|place: usize| list.get(place).cloned()),
            _ => None,
        };
        let is_word = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        Some((if is_word { format!("{of}.{key}") } else { format!("{of}[{key:?}]") }, value))
    }
}
