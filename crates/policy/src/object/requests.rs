//! Checks of what a rule says about requests.

use super::{ENTRIES, HOSTS, InvalidPolicy, invalid};
use crate::credential;
use crate::destination::Decision;
use crate::http::{HttpRule, McpRule, PathPattern, Pattern};
use crate::rule::{EgressRule, Tls};

/// Refuses what would have no effect on requests.
pub(super) fn check_requests(
    rule: &EgressRule,
    field: &impl Fn(&str) -> String,
) -> Result<(), InvalidPolicy> {
    for (name, length) in [(".http", rule.http.len()), (".mcp", rule.mcp.len())] {
        if length > ENTRIES {
            return Err(invalid(field(name), format!("at most {ENTRIES} entries")));
        }
    }
    if let Some(why) = credential::mistake_of_rule(rule) {
        return Err(invalid(field(".credentials"), why));
    }
    let reads = rule.reads_requests();
    if reads && !rule.protocol.is_auto() {
        return Err(invalid(field(".protocol"), "requests cannot be read with `protocol: TCP`"));
    }
    if rule.tls == Tls::Passthrough && (reads || !rule.protocol.is_auto() || rule.decision == Decision::Deny)
    {
        let reason =
            "`Passthrough` has no effect in a rule that reads requests, denies or has `protocol: TCP`";
        return Err(invalid(field(".tls"), reason));
    }
    if rule.decision == Decision::Deny && !(rule.http.is_empty() && rule.mcp.is_empty()) {
        return Err(invalid(
            field(".decision"),
            "has no effect with `http` or `mcp`: write it in their entries",
        ));
    }
    if rule.when.as_ref().is_some_and(|when| when.uses("args")) {
        return Err(invalid(field(".when"), "`args` has a value only in the entries of `mcp`"));
    }
    for (index, entry) in rule.http.iter().enumerate() {
        let field = |name: &str| field(&format!(".http[{index}]{name}"));
        check_entry(entry, &field)?;
    }
    for (index, McpRule { methods, tools, .. }) in rule.mcp.iter().enumerate() {
        for (name, list) in [(".methods", methods), (".tools", tools)] {
            if list.len() > HOSTS {
                return Err(invalid(
                    field(&format!(".mcp[{index}]{name}")),
                    format!("at most {HOSTS} entries"),
                ));
            }
        }
    }
    Ok(())
}

/// Refuses what no request or call can match.
pub(super) fn check_effect(rule: &EgressRule, field: &impl Fn(&str) -> String) -> Result<(), InvalidPolicy> {
    if rule.decision == Decision::Deny && rule.plaintext {
        return Err(invalid(field(".plaintext"), "has no effect in a rule that denies"));
    }
    for (index, entry) in rule.http.iter().enumerate() {
        if let Some(place) = entry.paths.iter().position(PathPattern::has_query) {
            return Err(invalid(field(&format!(".http[{index}].paths[{place}]")), PathPattern::WITH_QUERY));
        }
        if let Some(place) = entry.headers.iter().position(|header| !credential::is_token(&header.name)) {
            let reason = "is not a name of a header: letters, digits and signs such as `-`";
            return Err(invalid(field(&format!(".http[{index}].headers[{place}].name")), reason));
        }
    }
    match rule.mcp.iter().position(|entry| !entry.may_match()) {
        Some(index) => {
            let reason =
                "matches nothing: only the method `tools/call` names a tool, and `methods` has others";
            Err(invalid(field(&format!(".mcp[{index}].tools")), reason))
        }
        None => Ok(()),
    }
}

/// Maximum bytes of all regular expressions of a policy together, as they are compiled.
const EXPRESSIONS: usize = 1 << 20;

/// Refuses regular expressions that take too much memory together.
pub(super) fn check_expressions(rules: &[EgressRule]) -> Result<(), InvalidPolicy> {
    let mut bytes = 0;
    for (index, rule) in rules.iter().enumerate() {
        let values = rule.http.iter().flat_map(|entry| entry.query.iter().chain(&entry.headers));
        bytes += values.filter_map(|value| value.regex.as_ref()).map(Pattern::size).sum::<usize>();
        if bytes > EXPRESSIONS {
            let reason = format!(
                "regular expressions up to this rule take {bytes} bytes of memory; at most {EXPRESSIONS} in a policy; \
                 `exact` and `prefix` take none, and `[0-9A-Za-z_]` less than `\\w`"
            );
            return Err(invalid(format!("spec.egress.rules[{index}].http"), reason));
        }
    }
    Ok(())
}

/// Refuses conditions on fields that do not exist, on fields of computed parts of `args`, and with comparisons of different
/// types. Such a condition never holds or never has a value.
pub(super) fn check_conditions(
    rule: &EgressRule,
    field: &impl Fn(&str) -> String,
) -> Result<(), InvalidPolicy> {
    let when = rule.when.iter().map(|when| (".when".to_owned(), when));
    let args = rule.mcp.iter().enumerate();
    let args = args.filter_map(|(index, entry)| Some((format!(".mcp[{index}].args"), entry.args.as_ref()?)));
    for (name, condition) in when.chain(args) {
        if let Some(unknown) = condition.unknown_field() {
            return Err(invalid(field(&name), format!("{condition:?}: {unknown}")));
        }
        if let Some(mistake) = condition.mistake() {
            return Err(invalid(field(&name), format!("{condition:?}: {mistake}")));
        }
        if let Some(computed) = condition.field_of_computed() {
            let reason = "is taken of a value that is computed, which never has one beside `args`; write each key before it as a \
                          literal, such as `args.list[0].name` or `args[\"a b\"].name`";
            return Err(invalid(field(&name), format!("{condition:?}: the field {computed:?} {reason}")));
        }
    }
    Ok(())
}

/// Refuses media types that no body has.
pub(super) fn check_media_types(
    rule: &EgressRule,
    field: &impl Fn(&str) -> String,
) -> Result<(), InvalidPolicy> {
    for (index, entry) in rule.http.iter().enumerate() {
        let mut kinds = entry.body.iter().flat_map(|body| &body.content_types);
        if let Some(kind) = kinds.find(|kind| !is_media_type(kind)) {
            let reason = format!("{kind:?} is no media type such as `application/json`, without parameters");
            return Err(invalid(field(&format!(".http[{index}].body.contentTypes")), reason));
        }
    }
    Ok(())
}

/// Returns true for a text that can be the media type of a body.
fn is_media_type(text: &str) -> bool {
    let is_plain =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_graphic() && !b"/;,*".contains(&b));
    text.split_once('/').is_some_and(|(kind, subtype)| is_plain(kind) && is_plain(subtype))
}

fn check_entry(entry: &HttpRule, field: &impl Fn(&str) -> String) -> Result<(), InvalidPolicy> {
    let lists = [
        (".methods", entry.methods.len()),
        (".paths", entry.paths.len()),
        (".body.contentTypes", entry.body.as_ref().map_or(0, |body| body.content_types.len())),
    ];
    if let Some((name, _)) = lists.iter().find(|(_, length)| *length > HOSTS) {
        return Err(invalid(field(name), format!("at most {HOSTS} entries")));
    }
    for (name, list) in [(".query", &entry.query), (".headers", &entry.headers)] {
        if list.len() > ENTRIES {
            return Err(invalid(field(name), format!("at most {ENTRIES} entries")));
        }
        if let Some(index) = list.iter().position(|value| !value.is_one() || value.name.is_empty()) {
            let reason = "needs a name and one of `exact`, `prefix` and `regex`";
            return Err(invalid(field(&format!("{name}[{index}]")), reason));
        }
    }
    match &entry.body {
        Some(body) if body.max_bytes.is_none() && body.content_types.is_empty() => {
            Err(invalid(field(".body"), "limits nothing: it needs `maxBytes` or `contentTypes`"))
        }
        _ => Ok(()),
    }
}
