//! Decides about one destination or request, and says which policy decides what.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use hutch_policy::{
    Authority, Call, Decision, Destination, Forbidden, Host, Level, Mode, Moment, Opinion, Request, Traffic,
    check_address, decide, decide_request, judged_as, may_dial,
};
use serde::Serialize;

use crate::question::Question;

/// Parts of a request that a URL does not have.
#[derive(Default)]
pub(crate) struct Details<'a> {
    /// `None` is GET.
    pub(crate) method: Option<&'a str>,
    pub(crate) headers: Vec<(&'a str, &'a str)>,
    pub(crate) calls: Option<&'a [Call]>,
}

impl Details<'_> {
    /// Returns why the proxy refuses the request whatever the policies decide.
    fn never_sent(&self, method: &str) -> Option<String> {
        let Ok(method) = method.parse() else { return Some("it is no method of HTTP".to_owned()) };
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let (Ok(name), Ok(value)) = (HeaderName::try_from(*name), HeaderValue::try_from(*value)) else {
                return Some(format!("{name:?} with this value is no header of HTTP"));
            };
            headers.append(name, value);
        }
        hutch_egress::never_sent(&method, &headers)
    }
}

/// Opinion of one policy.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub(crate) authority: Authority,
    pub(crate) policy: String,
    pub(crate) mode: Mode,
    /// `None` if no rule matches, which denies, or the policy abstains.
    pub(crate) rule: Option<String>,
    /// `None` if the policy has no egress rules.
    pub(crate) decision: Option<Decision>,
    /// Condition because of which it denies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) condition: Option<String>,
}

/// Decision about a question.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Judgment {
    pub(crate) decision: Decision,
    /// The connection is one of HTTP with or without TLS, which the proxy reads.
    pub(crate) ends_tls: bool,
    /// Reason, where it is not the rule of a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Addition to the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// Port of another Sandbox to which it leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reaches: Option<String>,
    pub(crate) policies: Vec<Row>,
}

impl Judgment {
    /// Returns a denial that no policy decides.
    pub(crate) fn denied(reason: String) -> Judgment {
        let (reason, policies) = (Some(reason), Vec::new());
        Judgment { decision: Decision::Deny, ends_tls: false, reason, hint: None, reaches: None, policies }
    }

    /// Returns a denial whatever the policies decide.
    pub(crate) fn but_denied(self, reason: String) -> Judgment {
        Judgment { decision: Decision::Deny, reason: Some(reason), hint: None, reaches: None, ..self }
    }

    /// Returns the first policy that enforces and decides so.
    pub(crate) fn decisive(&self) -> Option<&Row> {
        let enforces = |row: &&Row| row.mode == Mode::Enforce && row.decision == Some(self.decision);
        self.policies.iter().find(enforces)
    }
}

/// Decides as the proxy does: about the connection, and about the request if the proxy reads it.
pub(crate) fn judge(
    levels: &[Arc<Level>],
    question: &Question,
    details: &Details<'_>,
    moment: &Moment<'_>,
) -> Judgment {
    let verdict = decide(levels, &question.destination, moment);
    let mut judgment = Judgment {
        decision: verdict.decision,
        ends_tls: verdict.inspect || verdict.scan,
        reason: None,
        hint: None,
        reaches: None,
        policies: rows(levels, &verdict.opinions),
    };
    if verdict.conflict {
        judgment.reason = Some(
            "a rule or a scanner needs TLS to end at the proxy, and another rule has `tls: Passthrough`"
                .to_owned(),
        );
    }
    if judgment.decision == Decision::Deny {
        if judgment.decisive().is_none() && judgment.reason.is_none() {
            judgment.reason = Some(closed(levels).to_owned());
        }
        return judgment;
    }
    match not_dialed(levels, &question.destination, moment) {
        Err(why) => return judgment.but_denied(why),
        Ok(hint) => judgment.hint = hint,
    }
    let Some(web) = &question.web else { return judgment };
    if !web.tls && verdict.traffic < Traffic::Web {
        return judgment
            .but_denied("it is HTTP without TLS; a rule with `plaintext: true` allows that".to_owned());
    }
    // Requests without TLS are always read.
    if verdict.inspect || !web.tls {
        let method = details.method.unwrap_or("GET");
        if let Some(why) = details.never_sent(method) {
            return judgment.but_denied(format!("the proxy refuses such a request: {why}"));
        }
        let host = question.destination.host.to_string();
        let without_body = details.calls.is_none() && matches!(method, "GET" | "HEAD" | "DELETE" | "OPTIONS");
        let request = Request {
            host: &host,
            port: question.destination.port.get(),
            method,
            path: &web.path,
            query: &web.query,
            headers: details.headers.clone(),
            websocket: web.websocket,
            tls: web.tls,
            length: without_body.then_some(0),
            calls: details.calls,
        };
        let verdict = decide_request(levels, &question.destination, &request, moment);
        judgment.decision = verdict.decision;
        judgment.policies = rows(levels, &verdict.opinions);
        judgment.hint = judgment.hint.filter(|_| verdict.decision == Decision::Allow);
    }
    judgment
}

/// Returns a hint about an address that is dialed only if it is not one of the machine.
///
/// # Errors
/// Why the address is never dialed.
fn not_dialed(
    levels: &[Arc<Level>],
    destination: &Destination,
    moment: &Moment<'_>,
) -> Result<Option<String>, String> {
    let Host::Address(address) = destination.host else { return Ok(None) };
    let dial = |own: &[IpAddr]| may_dial(levels, destination, address, own, moment);
    if let Err(closed) = dial(&[]) {
        let by = match closed {
            Forbidden::ThisMachine | Forbidden::NotPublic => {
                "; on a server, `private` of ClusterSandboxPolicies alone opens it"
            }
            _ => "",
        };
        return Err(format!("{address} is not dialed: {closed}{by}"));
    }
    // Only the machine that dials knows whether it is one of its own, which is mostly a private one.
    let may_be_own = check_address(address, &[], &[]).is_err() && dial(&[judged_as(address)]).is_err();
    Ok(may_be_own.then(|| {
        format!(
            "refused if {address} is an address of the machine itself: `private` of a ClusterSandboxPolicy must then name it, \
             not a range"
        )
    }))
}

/// Returns why nothing opens the network.
fn closed(levels: &[Arc<Level>]) -> &'static str {
    let mut with_rules = levels.iter().filter(|level| level.egress.is_some()).peekable();
    if with_rules.peek().is_none() {
        return "no policy opens the network";
    }
    match with_rules.all(|level| level.mode == Mode::Observe) {
        true => "no policy opens the network: those that apply only observe",
        false => {
            "no policy opens the network: only an annotation of a claim or a Sandbox names those that apply"
        }
    }
}

/// Returns what each policy says, those without egress rules last.
pub(crate) fn rows(levels: &[Arc<Level>], opinions: &[Opinion<'_>]) -> Vec<Row> {
    let row = |level: &Level| Row {
        authority: level.authority,
        policy: level.name.clone(),
        mode: level.mode,
        rule: None,
        decision: None,
        condition: None,
    };
    let having = opinions.iter().map(|opinion| Row {
        rule: opinion.rule.map(str::to_owned),
        decision: Some(opinion.decision),
        condition: opinion.unmet.as_ref().map(ToString::to_string),
        ..row(opinion.level)
    });
    let without = levels.iter().filter(|level| level.egress.is_none()).map(|level| row(level));
    having.chain(without).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(rules: &serde_json::Value) -> Vec<Arc<Level>> {
        let egress = serde_json::from_value(serde_json::json!({ "rules": rules })).expect("rules");
        let authority = Authority::Namespace;
        vec![Arc::new(Level::new(authority, "p", Some(egress)))]
    }

    fn decided(levels: &[Arc<Level>], text: &str, method: &str) -> (Decision, bool) {
        let details = Details { method: Some(method), ..Details::default() };
        let judgment = judge(levels, &text.parse().expect("a question"), &details, &Moment::default());
        (judgment.decision, judgment.ends_tls)
    }

    #[test]
    fn denial_says_why_policies_that_allow_open_nothing() {
        let all = level(&serde_json::json!([{"name": "all", "any": true}]));
        let reason = |change: fn(&mut Level)| {
            let mut level = Level::clone(&all[0]);
            change(&mut level);
            let question = "a.example".parse().expect("a question");
            judge(&[Arc::new(level)], &question, &Details::default(), &Moment::default()).reason
        };
        assert_eq!(reason(|_| {}), None);
        let observes = reason(|level| level.mode = Mode::Observe).expect("a reason");
        assert!(observes.ends_with("those that apply only observe"), "{observes}");
        let of_claim = reason(|level| level.authority = Authority::Claim).expect("a reason");
        assert!(of_claim.contains("only an annotation of a claim"), "{of_claim}");
    }

    /// Regression: these were allowed here, and refused when they were dialed.
    #[test]
    fn address_that_is_never_dialed_is_denied_with_the_reason() {
        let rules = serde_json::json!([
            {"name": "all", "cidrs": ["0.0.0.0/0", "::/0"], "ports": [443]},
            {"name": "db", "cidrs": ["10.1.0.0/16"], "ports": [5432], "private": ["10.1.0.0/16", "127.0.0.1"]},
        ]);
        let mut levels = level(&rules);
        let judged = |levels: &[Arc<Level>], text: &str| {
            judge(levels, &text.parse().expect("a question"), &Details::default(), &Moment::default())
        };
        for (text, reason) in [
            ("1.1.1.1", None),
            ("10.1.2.3:5432", None),
            ("10.1.2.3", Some("10.1.2.3 is not dialed: it is an address of a private network")),
            ("https://169.254.169.254/latest", Some("which no rule opens")),
            ("127.0.0.1", Some("it is an address of this machine")),
            ("[::ffff:10.2.0.1]", Some("private network")),
            ("10.2.0.1:5432", None),
        ] {
            let judgment = judged(&levels, text);
            let denied = text == "10.2.0.1:5432" || reason.is_some();
            assert_eq!(judgment.decision == Decision::Deny, denied, "{text}: {judgment:?}");
            match reason {
                Some(reason) => assert!(judgment.reason.expect("a reason").contains(reason), "{text}"),
                None => assert_eq!(judgment.reason, None, "{text}"),
            }
        }
        let hint = |text: &str| judged(&levels, text).hint;
        assert!(hint("10.1.2.3:5432").expect("a hint").contains("must then name it, not a range"));
        assert_eq!([hint("1.1.1.1"), hint("127.0.0.1:5432")], [None, None]);
        let mut of_claim = (*levels[0]).clone();
        of_claim.authority = Authority::Claim;
        of_claim.egress = serde_json::from_value(serde_json::json!({"rules": [
            {"name": "db", "cidrs": ["10.1.0.0/16"], "ports": [5432]}]}))
        .expect("rules");
        levels.push(Arc::new(of_claim));
        let judgment = judged(&levels, "10.1.2.3:5432");
        assert_eq!(judgment.decision, Decision::Deny, "every level must open it: {judgment:?}");
    }

    #[test]
    fn requests_are_judged_only_where_they_are_read() {
        use Decision::{Allow, Deny};
        let reads = serde_json::json!([
            {"name": "r", "hosts": ["a.example"], "http": [{"methods": ["GET"], "paths": ["/x/**"]}]},
        ]);
        let reads = level(&reads);
        assert_eq!(decided(&reads, "https://a.example/x/y", "GET"), (Allow, true));
        assert_eq!(decided(&reads, "https://a.example/x/y", "POST"), (Deny, true));
        assert_eq!(decided(&reads, "https://a.example/z", "GET"), (Deny, true));
        let any = level(&serde_json::json!([{"name": "r", "hosts": ["a.example"], "http": [{}]}]));
        for (method, decision) in
            [("PUT", Allow), ("TRACE", Deny), ("CONNECT", Deny), ("get", Deny), ("", Deny)]
        {
            assert_eq!(decided(&any, "https://a.example/", method), (decision, true), "{method}");
        }
        for (name, decision) in [("x-a", Allow), ("x-http-method-override", Deny), ("x_original_url", Deny)] {
            let details = Details { headers: vec![(name, "PUT")], ..Details::default() };
            let question = "https://a.example/".parse().expect("a question");
            let judgment = judge(&any, &question, &details, &Moment::default());
            assert_eq!(judgment.decision, decision, "{name}: {judgment:?}");
        }
        assert_eq!(decided(&reads, "a.example", "GET"), (Allow, true));
        assert_eq!(decided(&reads, "https://b.example/x/y", "GET"), (Deny, false));
        let joins = level(&serde_json::json!([{"name": "j", "hosts": ["a.example"], "ports": [80, 443]}]));
        assert_eq!(decided(&joins, "https://a.example/z", "POST"), (Allow, false));
        assert_eq!(decided(&joins, "http://a.example/z", "POST"), (Deny, false), "without plaintext");
        assert_eq!(decided(&[], "a.example", "GET"), (Deny, false));
    }
}
