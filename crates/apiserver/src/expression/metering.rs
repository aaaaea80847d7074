//! The rewriting of an expression so that what it costs is paid.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue, MapEntryExpr,
    MapExpr, SelectExpr, operators,
};
use regex::RegexBuilder;

/// Function that pays for a value. No expression can name it.
pub(super) const CHARGE: &str = "%charge";
/// Function that pays the square of a value's size.
pub(super) const CHARGE_SQUARE: &str = "%charge_square";
/// Variable that holds the variables of a policy.
const VARIABLES: &str = "variables";
/// Function that bounds the text of a quantity.
pub(super) const BOUNDED_QUANTITY: &str = "%quantity";
/// Function that makes a quantity of a text.
const QUANTITY: &str = "quantity";
/// Function that pays for the use of a pattern.
pub(super) const CHARGE_PATTERN: &str = "%charge_pattern";
/// Maximum bytes of a compiled pattern, and the units that a use costs, by size: each use compiles it anew.
const PATTERNS: [(usize, i64); 4] = [(4 << 10, 50), (16 << 10, 200), (32 << 10, 400), (64 << 10, 800)];
/// Maximum digits of a precision in a format.
const PRECISION_DIGITS: usize = 2;

/// Functions whose cost grows with the sizes of their arguments.
const LINEAR: &[&str] = &[
    "contains",
    "size",
    "max",
    "min",
    "startsWith",
    "endsWith",
    "string",
    "bytes",
    "double",
    "int",
    "uint",
    "optional.none",
    "optional.of",
    "optional.ofNonZeroValue",
    "value",
    "hasValue",
    "or",
    "orValue",
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
    "isGreaterThan",
    "isLessThan",
    "compareTo",
    "ip",
    "reverse",
    "base64.decode",
    "base64.encode",
    "isIP",
    "ip.isCanonical",
    "family",
    "isLoopback",
    "isUnspecified",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    "cidr",
    "isCIDR",
    "containsIP",
    "containsCIDR",
    "prefixLength",
    "masked",
    "jsonpatch.escapeKey",
    "sum",
    "first",
    "last",
    "math.ceil",
    "math.floor",
    "math.round",
    "math.trunc",
    "math.abs",
    "math.sign",
    "math.isInf",
    "math.isNaN",
    "math.isFinite",
    "math.bitAnd",
    "math.bitOr",
    "math.bitXor",
    "math.bitNot",
    "math.bitShiftLeft",
    "math.bitShiftRight",
    "math.sqrt",
    "math.greatest",
    "math.least",
    "format.dns1123Label",
    "format.dns1123Subdomain",
    "format.dns1035Label",
    "format.dns1035LabelPrefix",
    "format.dns1123LabelPrefix",
    "format.dns1123SubdomainPrefix",
    "format.qualifiedName",
    "format.labelValue",
    "format.uri",
    "format.uuid",
    "format.byte",
    "format.date",
    "format.datetime",
    "format.named",
    "validate",
    "quantity",
    "isQuantity",
    "isInteger",
    "asInteger",
    "asApproximateFloat",
    "sign",
    "add",
    "sub",
    "semver",
    "isSemver",
    "major",
    "minor",
    "patch",
    "charAt",
    "lowerAscii",
    "upperAscii",
    "substring",
    "trim",
    "strings.quote",
    "url",
    "isURL",
    "getScheme",
    "getHost",
    "getHostname",
    "getPort",
    "getEscapedPath",
    "getQuery",
];
/// Functions that may compare or repeat each part of an argument with each part of another.
const SQUARE: &[&str] = &[
    "indexOf",
    "lastIndexOf",
    "isSorted",
    "slice",
    "sort",
    "flatten",
    "distinct",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "replace",
    "split",
    "join",
    // Looks for the next match from each place.
    "findAll",
];
/// Functions with a pattern as their first argument.
const PATTERN: &[&str] = &["matches", "find", "findAll"];
/// Function that formats arguments.
const FORMAT: &str = "format";

/// Names that an expression may use at some place.
pub(super) struct Scope {
    names: Vec<String>,
}

impl Scope {
    pub(super) fn new(variables: &[&str]) -> Scope {
        Scope { names: variables.iter().map(ToString::to_string).collect() }
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

/// Returns the expression with a payment around each value, or why it is refused.
pub(super) fn metered(expression: &IdedExpr, scope: &mut Scope) -> Result<IdedExpr, String> {
    let inner = match &expression.expr {
        Expr::Literal(_) => return Ok(expression.clone()),
        Expr::Ident(name) => {
            declared(name, scope)?;
            expression.expr.clone()
        }
        Expr::Select(select) => {
            of_variables(select, scope)?;
            Expr::Select(SelectExpr {
                operand: Box::new(operand(&select.operand, scope)?),
                field: select.field.clone(),
                test: select.test,
            })
        }
        Expr::Call(call) => return self::call(call, scope),
        Expr::List(list) => Expr::List(ListExpr {
            elements: all(&list.elements, scope)?,
            optional_indices: list.optional_indices.clone(),
        }),
        Expr::Map(map) => Expr::Map(self::map(map, scope)?),
        Expr::Comprehension(comprehension) => {
            Expr::Comprehension(Box::new(self::comprehension(comprehension, scope)?))
        }
        Expr::Struct(literal) => return Err(format!("undeclared reference to '{}'", literal.type_name)),
        Expr::Unspecified => return Err("the expression is empty".into()),
    };
    Ok(charged(inner, CHARGE))
}

fn charged(inner: Expr, function: &str) -> IdedExpr {
    let args = vec![IdedExpr { id: 0, expr: inner }];
    IdedExpr { id: 0, expr: Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args }) }
}

fn declared(name: &str, scope: &Scope) -> Result<(), String> {
    match name {
        _ if scope.has(name) => Ok(()),
        "authorizer" => Err("'authorizer' is not supported by this server".into()),
        _ => Err(format!("undeclared reference to '{name}'")),
    }
}

/// A field of `variables` must be defined, by a name `variables.FIELD` of the scope.
fn of_variables(select: &SelectExpr, scope: &Scope) -> Result<(), String> {
    let is_variables = matches!(&select.operand.expr, Expr::Ident(name) if name == VARIABLES);
    if is_variables && !scope.has(&format!("{VARIABLES}.{}", select.field)) {
        return Err(format!("undefined field '{}'", select.field));
    }
    Ok(())
}

fn all(expressions: &[IdedExpr], scope: &mut Scope) -> Result<Vec<IdedExpr>, String> {
    expressions.iter().map(|expression| metered(expression, scope)).collect()
}

/// A value of which a part is selected: a variable is not copied for that, so it costs nothing.
fn operand(expression: &IdedExpr, scope: &mut Scope) -> Result<IdedExpr, String> {
    match &expression.expr {
        Expr::Ident(name) => declared(name, scope).map(|()| expression.clone()),
        _ => metered(expression, scope),
    }
}

fn call(call: &CallExpr, scope: &mut Scope) -> Result<IdedExpr, String> {
    let name = call.func_name.as_str();
    // `math.abs(x)` is read as a method of a variable `math`.
    let space = match call.target.as_deref().map(|target| &target.expr) {
        Some(Expr::Ident(prefix)) if !scope.has(prefix) => Some(prefix.as_str()),
        _ => None,
    };
    let full = space.map_or_else(|| name.to_owned(), |space| format!("{space}.{name}"));
    let is_operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
    let square = SQUARE.contains(&full.as_str());
    let mut pattern_at = None;
    if PATTERN.contains(&full.as_str()) {
        pattern_at = Some(pattern(call)?);
    } else if full == FORMAT {
        format(call)?;
    } else if !is_operator && !square && !LINEAR.contains(&full.as_str()) {
        return Err(format!("undeclared reference to '{full}'"));
    }
    let parts = matches!(name, operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT);
    let mut args = Vec::with_capacity(call.args.len());
    for (place, argument) in call.args.iter().enumerate() {
        let paid = if parts && place == 0 { operand(argument, scope)? } else { metered(argument, scope)? };
        args.push(match full.as_str() {
            _ if pattern_at.is_some_and(|(own, _)| own == place) => {
                paying(paid.expr, pattern_at.map_or(0, |(_, units)| units))
            }
            _ if square => charged(paid.expr, CHARGE_SQUARE),
            QUANTITY => charged(paid.expr, BOUNDED_QUANTITY),
            _ => paid,
        });
    }
    let target = match (&call.target, space) {
        (None, _) => None,
        (Some(target), Some(_)) => Some(target.clone()),
        (Some(target), None) => {
            let paid = metered(target, scope)?;
            Some(Box::new(if square { charged(paid.expr, CHARGE_SQUARE) } else { paid }))
        }
    };
    Ok(charged(Expr::Call(CallExpr { func_name: name.to_owned(), target, args }), CHARGE))
}

/// A pattern is compiled at each use: it must be known, and small. Returns its place, and the units of a use.
fn pattern(call: &CallExpr) -> Result<(usize, i64), String> {
    let name = &call.func_name;
    // `matches(text, pattern)` is the same as `text.matches(pattern)`.
    let place = usize::from(call.target.is_none());
    let Some(Expr::Literal(LiteralValue::String(pattern))) = call.args.get(place).map(|arg| &arg.expr) else {
        return Err(format!("the pattern of '{name}' must be a string literal"));
    };
    let mut failed = String::new();
    for (bytes, units) in PATTERNS {
        match RegexBuilder::new(pattern.inner()).size_limit(bytes).build() {
            Ok(_) => return Ok((place, units)),
            Err(error) => failed = format!("the pattern of '{name}': {error}"),
        }
    }
    Err(failed)
}

/// A pattern whose use costs so many units.
fn paying(pattern: Expr, units: i64) -> IdedExpr {
    let units = Expr::Literal(LiteralValue::Int(units.into()));
    let args = [pattern, units].map(|expr| IdedExpr { id: 0, expr }).to_vec();
    IdedExpr {
        id: 0,
        expr: Expr::Call(CallExpr { func_name: CHARGE_PATTERN.to_owned(), target: None, args }),
    }
}

/// A precision makes text of any length.
fn format(call: &CallExpr) -> Result<(), String> {
    let Some(Expr::Literal(LiteralValue::String(text))) = call.target.as_deref().map(|target| &target.expr)
    else {
        return Err("the text of 'format' must be a string literal".into());
    };
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).count();
    if text.inner().split('.').skip(1).any(|rest| digits(rest) > PRECISION_DIGITS) {
        return Err(format!("a precision of 'format' has at most {PRECISION_DIGITS} digits"));
    }
    Ok(())
}

fn map(map: &MapExpr, scope: &mut Scope) -> Result<MapExpr, String> {
    let mut entries = Vec::with_capacity(map.entries.len());
    for entry in &map.entries {
        let EntryExpr::MapEntry(pair) = &entry.expr else {
            return Err("a field of a struct stands in a map".into());
        };
        let pair = MapEntryExpr {
            key: metered(&pair.key, scope)?,
            value: metered(&pair.value, scope)?,
            optional: pair.optional,
        };
        entries.push(IdedEntryExpr { id: entry.id, expr: EntryExpr::MapEntry(pair) });
    }
    Ok(MapExpr { entries })
}

/// Each iteration copies one item, and the result so far. The items are paid with the list; the result is the value of the
/// step.
fn comprehension(own: &ComprehensionExpr, scope: &mut Scope) -> Result<ComprehensionExpr, String> {
    if own.iter_var2.is_some() {
        return Err("a macro with two variables is not supported".into());
    }
    let (iter_range, accu_init) = (metered(&own.iter_range, scope)?, metered(&own.accu_init, scope)?);
    let outer = scope.names.len();
    scope.names.extend([own.accu_var.clone(), own.iter_var.clone()]);
    let inner = (|| {
        Ok::<_, String>((
            metered(&own.loop_cond, scope)?,
            metered(&own.loop_step, scope)?,
            metered(&own.result, scope)?,
        ))
    })();
    scope.names.truncate(outer);
    let (loop_cond, loop_step, result) = inner?;
    Ok(ComprehensionExpr { iter_range, accu_init, loop_cond, loop_step, result, ..own.clone() })
}

/// All functions that expressions may call.
#[cfg(test)]
pub(super) fn functions() -> impl Iterator<Item = &'static str> {
    LINEAR.iter().chain(SQUARE).copied()
}
