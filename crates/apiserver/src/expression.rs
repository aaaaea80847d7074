//! Expressions of admission in CEL: compiled when their object is stored, evaluated within a budget.
//!
//! The interpreter has no limit of its own. So each expression is rewritten when it is compiled: every intermediate value
//! passes through a function that subtracts the value's size from the budget ([`metered`](self::metering::metered)). An
//! evaluation whose budget is used up fails, whatever its result would be. Functions whose cost is not bounded by the size of
//! their arguments and results are refused, and so are struct literals, which the interpreter does not survive.

mod metering;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use hutch_api::quantity::Quantity;
use kube_cel::KubeCelExt;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{Context, ExecutionError, IdedExpr, Value as Cel};
use serde_json::Value;

use self::metering::{BOUNDED_QUANTITY, CHARGE, CHARGE_PATTERN, CHARGE_SQUARE, Scope, metered};

/// Maximum bytes of an expression.
pub(crate) const EXPRESSION_BYTES: usize = 8 << 10;
/// Units that one evaluation of an expression may cost: a value costs one for each of its parts and one for each
/// [`TEXT_UNIT`] bytes of text. It is a fraction of a second.
const OF_EXPRESSION: i64 = 1_000_000;
/// Units of all expressions of one policy with one binding, or of one webhook, for one request.
const OF_OWNER: i64 = 2_000_000;
/// Units of all expressions of one request, of all policies and webhooks: they are evaluated one after the other, and nothing
/// else happens on their thread.
const OF_REQUEST: i64 = 8_000_000;
/// Bytes of text for which one unit is charged.
const TEXT_UNIT: usize = 16;
/// Maximum thousandths of a quantity. Sums of as many as the budget allows fit in 128 bits.
const QUANTITY_MILLI: u128 = 10_u128.pow(27);
/// Maximum seconds of a duration, as of one in Go.
const DURATION_SECONDS: u64 = 9_223_372_036;
/// Maximum characters of a text in a message.
const SHOWN: usize = 64;
/// Maximum characters of the message of a failed evaluation, which may show values of the object.
const MESSAGE: usize = 512;

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Expression(IdedExpr);

/// Returns the expression, or why it is invalid, in the words of the compiler. `variables` are those that it may use.
pub(crate) fn compile(text: &str, variables: &[&str]) -> Result<Expression, String> {
    if text.len() > EXPRESSION_BYTES {
        return Err(format!("expression has {} bytes; at most {EXPRESSION_BYTES} are allowed", text.len()));
    }
    // The parser bounds how deeply an expression is nested. Optional fields (`.?`) are refused: the interpreter returns a wrong
    // value for more than one of them.
    let parsed = Parser::new().parse(text);
    let parsed = parsed.map_err(|error| format!("compilation failed: {error}"))?;
    let mut scope = Scope::new(variables);
    let expression = metered(&parsed, &mut scope);
    expression.map(Expression).map_err(|why| format!("compilation failed: {why}"))
}

/// Units that are left for one request. Clones share them. Expressions are evaluated one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Units>);

#[derive(Debug)]
struct Units {
    expression: AtomicI64,
    owner: AtomicI64,
    request: AtomicI64,
}

impl Default for Budget {
    fn default() -> Budget {
        let [expression, owner, request] = [OF_EXPRESSION, OF_OWNER, OF_REQUEST].map(AtomicI64::new);
        Budget(Arc::new(Units { expression, owner, request }))
    }
}

impl Budget {
    /// Subtracts units; false when that many are not left.
    fn take(&self, units: i64) -> bool {
        // What fails one expression is not taken from others.
        let units = units.clamp(0, OF_EXPRESSION + 1);
        let Units { expression, owner, request } = &*self.0;
        // Once one is negative it stays so: what follows in the same expression, policy or request fails too.
        let left = [expression, owner, request].map(|left| left.fetch_sub(units, Ordering::Relaxed) - units);
        left.iter().all(|left| *left >= 0)
    }

    /// Starts again with all units of a request.
    pub(crate) fn renew(&self) {
        self.0.request.store(OF_REQUEST, Ordering::Relaxed);
        self.begin();
    }

    /// Begins the expressions of another policy or webhook.
    pub(crate) fn begin(&self) {
        self.0.owner.store(OF_OWNER, Ordering::Relaxed);
    }

    /// Returns true if the whole request has used up its units, whatever failures mean for the policy.
    pub(crate) fn is_used_up(&self) -> bool {
        self.0.request.load(Ordering::Relaxed) < 0
    }

    fn is_exhausted(&self) -> bool {
        let Units { expression, owner, request } = &*self.0;
        [expression, owner, request].iter().any(|left| left.load(Ordering::Relaxed) < 0)
    }
}

/// Variables with their values, for some expressions.
pub(crate) struct Evaluation {
    context: Context<'static>,
    budget: Budget,
}

impl Evaluation {
    /// No variables yet. What is evaluated is paid from the budget.
    pub(crate) fn new(budget: &Budget) -> Evaluation {
        let mut context = Context::default().with_all();
        let of_charge = budget.clone();
        context.add_function(CHARGE, move |value: Cel| charge(&of_charge, value, false));
        let of_square = budget.clone();
        context.add_function(CHARGE_SQUARE, move |value: Cel| charge(&of_square, value, true));
        let of_pattern = budget.clone();
        context.add_function(CHARGE_PATTERN, move |value: Cel, units: i64| pay(&of_pattern, value, units));
        context.add_function(BOUNDED_QUANTITY, bounded_quantity);
        Evaluation { context, budget: budget.clone() }
    }

    /// Sets a variable.
    pub(crate) fn set(&mut self, name: &str, value: &Value) {
        self.context.add_variable_from_value(name, cel(value));
    }

    /// Sets a variable to a map of values that were evaluated. It is copied, which costs what its values cost.
    pub(crate) fn set_map(&mut self, name: &str, values: &HashMap<String, Cel>) {
        let map = values.iter().map(|(name, value)| (Key::String(Arc::new(name.clone())), value.clone()));
        let map = Cel::Map(Map { map: Arc::new(map.collect()) });
        // If they are used up, the next evaluation fails.
        self.budget.take(size(&map));
        self.context.add_variable_from_value(name, map);
    }

    /// Evaluates an expression. The error is a message.
    pub(crate) fn value(&self, expression: &Expression) -> Result<Cel, String> {
        self.budget.0.expression.store(OF_EXPRESSION, Ordering::Relaxed);
        let value = Cel::resolve(&expression.0, &self.context);
        if self.budget.is_exhausted() {
            return Err("operation cancelled: actual cost limit exceeded".into());
        }
        value.map_err(|error| error.to_string().chars().take(MESSAGE).collect())
    }

    /// Evaluates an expression whose value must be true or false.
    pub(crate) fn truth(&self, expression: &Expression) -> Result<bool, String> {
        match self.value(expression)? {
            Cel::Bool(truth) => Ok(truth),
            other => Err(format!("must evaluate to bool, got {}", other.type_of())),
        }
    }
}

/// Returns the text of a quantity in thousandths. The library computes with 128 bits and does not notice when they overflow:
/// an amount such as `1e40` would compare as a small one.
fn bounded_quantity(value: Cel) -> Result<Cel, ExecutionError> {
    let Cel::String(text) = &value else { return Ok(value) };
    let milli = Quantity::parse(text.trim()).map(Quantity::milli);
    let milli = milli.filter(|milli| milli.unsigned_abs() <= QUANTITY_MILLI);
    let milli = milli.ok_or_else(|| {
        let shown: String = text.chars().take(SHOWN).collect();
        ExecutionError::function_error("quantity", format!("{shown:?} is not a quantity, or out of range"))
    })?;
    Ok(Cel::String(Arc::new(format!("{milli}m"))))
}

fn charge(budget: &Budget, value: Cel, square: bool) -> Result<Cel, ExecutionError> {
    // Two of them can be added to any time without an overflow, at which the library panics.
    if let Cel::Duration(duration) = &value
        && duration.num_seconds().unsigned_abs() > DURATION_SECONDS
    {
        return Err(ExecutionError::function_error("duration", "duration is out of range"));
    }
    let units = size(&value);
    pay(budget, value, if square { units.saturating_mul(units) } else { units })
}

fn pay(budget: &Budget, value: Cel, units: i64) -> Result<Cel, ExecutionError> {
    if budget.take(units) {
        return Ok(value);
    }
    Err(ExecutionError::function_error("budget", "operation cancelled: actual cost limit exceeded"))
}

/// Number of parts of a value, with its text. It cannot be nested more deeply than a request's body or an expression.
fn size(value: &Cel) -> i64 {
    let text = |bytes: usize| (bytes / TEXT_UNIT) as i64;
    1 + match value {
        Cel::List(list) => list.iter().map(size).sum(),
        Cel::Map(map) => map.map.iter().map(|(key, value)| of_key(key) + size(value)).sum(),
        Cel::String(string) => text(string.len()),
        Cel::Bytes(bytes) => text(bytes.len()),
        _ => 0,
    }
}

fn of_key(key: &Key) -> i64 {
    match key {
        Key::String(text) => 1 + (text.len() / TEXT_UNIT) as i64,
        _ => 1,
    }
}

/// The value of JSON. Names of fields stay as they are, as in Kubernetes for objects of admission.
pub(crate) fn cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(truth) => Cel::Bool(*truth),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Cel::Int(whole),
            (None, Some(whole)) => Cel::UInt(whole),
            (None, None) => Cel::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(list) => Cel::List(Arc::new(list.iter().map(cel).collect())),
        Value::Object(fields) => {
            let fields: HashMap<Key, Cel> = fields
                .iter()
                .map(|(name, value)| (Key::String(Arc::new(name.clone())), cel(value)))
                .collect();
            Cel::Map(Map { map: Arc::new(fields) })
        }
    }
}

#[cfg(test)]
mod tests;
