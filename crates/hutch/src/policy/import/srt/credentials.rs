//! `credentials`: files and variables that a program must not read, and variables whose value the proxy puts in the place of
//! a placeholder.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use hutch_policy::{Credential, EgressRule, HostPattern, PolicyObject};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::Notes;
use super::domains;
use super::tls::covers;

const VARIABLES: &str = "credentials.envVars";
const FILES: &str = "credentials.files";
const PAIRS: &str = "credentials.awsPairs";
/// Requests for AWS that cannot be signed again.
const SIGNED: [&str; 3] = ["streaming", "presigned", "sigv4a"];
/// Variables that every sandbox has.
const OWN: [&str; 3] = ["PATH", "HOME", "TERM"];
/// Variables that srt takes for one key of AWS.
const AWS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Deny,
    Mask,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Decode {
    Jwt,
}

/// A variable. `deny` takes no other field into account.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Variable {
    name: String,
    mode: Mode,
    extract: Option<Value>,
    on_extract_no_match: Option<Value>,
    decode: Option<Decode>,
    mask_claims: Option<Value>,
    inject_hosts: Option<Vec<String>>,
}

/// A file or folder. `deny` takes no other field into account.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    path: String,
    mode: Mode,
    extract: Option<Value>,
    on_extract_no_match: Option<Value>,
    decode: Option<Value>,
    mask_claims: Option<Value>,
    mask_duplicates: Option<Value>,
    inject_hosts: Option<Value>,
}

/// Variables of one key of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Pair {
    access_key_id_var: String,
    secret_access_key_var: String,
    session_token_var: Option<String>,
}

/// Settings of credentials.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Files and folders that cannot be read.
    pub(crate) deny_files: Vec<String>,
    /// Variables that the program must not have.
    pub(crate) deny_variables: Vec<String>,
    masked: Vec<(String, Variable)>,
    pairs: Vec<Pair>,
}

/// Domains to which values may go.
pub(super) struct Hosts<'a> {
    pub(super) allowed: &'a [String],
    /// Domains whose TLS does not end at the proxy.
    pub(super) excluded: &'a [String],
}

impl Credentials {
    /// Takes the settings out of the keys. `terminates` is true if TLS ends at the proxy.
    pub(super) fn parse(
        found: &mut BTreeMap<String, Value>,
        terminates: bool,
        notes: &mut Notes,
    ) -> anyhow::Result<Credentials> {
        let mut all = Credentials::default();
        for (field, file) in list::<File>(found, FILES)? {
            match file.mode {
                Mode::Deny => all.deny_files.push(file.path),
                Mode::Mask => notes.refuse(
                    &format!("{field}.mode"),
                    "only a variable has a placeholder: name it in envVars, and deny the file",
                ),
            }
        }
        let mut named = BTreeSet::new();
        for (field, variable) in list::<Variable>(found, VARIABLES)? {
            if !named.insert(variable.name.clone()) {
                notes.refuse(&format!("{field}.name"), "the variable is named twice");
            }
            let name = format!("`{}`", variable.name.escape_debug());
            match variable.mode {
                Mode::Deny if OWN.contains(&variable.name.as_str()) => {
                    notes.refuse(
                        &format!("{field}.name"),
                        format!("{name}: every sandbox has one of its own"),
                    );
                }
                Mode::Deny => all.deny_variables.push(variable.name),
                Mode::Mask => {
                    note_parts(&field, &variable, notes);
                    all.masked.push((field, variable));
                }
            }
        }
        for kind in SIGNED {
            let field = format!("credentials.sigv4.{kind}");
            match found.remove(&field) {
                None => {}
                Some(Value::String(text)) if text == "deny" => {}
                Some(_) => notes.refuse(&field, "only `deny`: these requests cannot be signed again"),
            }
        }
        found.remove("credentials.sigv4");
        found.remove("credentials");
        for (field, pair) in list::<Pair>(found, PAIRS)? {
            all.check_pair(&field, &pair)?;
            all.pairs.push(pair);
        }
        all.add_pair_of_aws();
        if !terminates && !all.masked.is_empty() {
            notes.refuse("credentials", "`mask` needs network.tlsTerminate");
        }
        if !all.masked.is_empty() {
            notes
                .change(VARIABLES, "values stand in headers and queries; in a body, the placeholder is sent");
        }
        Ok(all)
    }

    /// Returns true if variables are denied or have placeholders.
    pub(super) fn has_variables(&self) -> bool {
        !self.deny_variables.is_empty() || !self.masked.is_empty()
    }

    fn check_pair(&self, field: &str, pair: &Pair) -> anyhow::Result<()> {
        let mut earlier: BTreeSet<&str> = self.pairs.iter().flat_map(Pair::names).collect();
        for name in pair.names() {
            let shown = name.escape_debug();
            if !self.masked.iter().any(|(_, variable)| variable.name == name) {
                bail!("{field}: `{shown}` is not a variable of envVars with `mask`");
            }
            if !earlier.insert(name) {
                bail!("{field}: `{shown}` is in a pair twice");
            }
        }
        Ok(())
    }

    /// Adds the pair that srt makes of the usual names, unless another one has them.
    fn add_pair_of_aws(&mut self) {
        let taken: BTreeSet<&str> = self.pairs.iter().flat_map(Pair::names).collect();
        let free = |name: &str| {
            let plain =
                |(_, variable): &(String, Variable)| variable.name == name && variable.decode.is_none();
            self.masked.iter().any(plain) && !taken.contains(name)
        };
        let [id, secret, token] = AWS;
        if free(id) && free(secret) {
            let session_token_var = free(token).then(|| token.to_owned());
            let (access_key_id_var, secret_access_key_var) = (id.to_owned(), secret.to_owned());
            self.pairs.push(Pair { access_key_id_var, secret_access_key_var, session_token_var });
        }
    }

    /// Returns the masked variables that are set, as credentials of a policy.
    pub(super) fn offered(
        &self,
        hosts: &Hosts<'_>,
        is_set: impl Fn(&str) -> bool,
        notes: &mut Notes,
    ) -> Vec<Value> {
        let mut offered = Vec::new();
        for (field, variable) in &self.masked {
            if !is_set(&variable.name) {
                notes.change(&format!("{field}.name"), "the variable is not set, so it has no placeholder");
                continue;
            }
            let pair = self.pairs.iter().find(|pair| {
                let [id, secret] = [&pair.access_key_id_var, &pair.secret_access_key_var];
                pair.names().any(|name| name == variable.name) && is_set(id) && is_set(secret)
            });
            // Those of a key go where its id goes.
            let of_id = pair
                .and_then(|pair| self.masked.iter().find(|(_, other)| other.name == pair.access_key_id_var));
            let (field, of) = of_id.map_or((field, variable), |(field, of)| (field, of));
            let hosts = of.hosts(field, hosts, notes);
            let mut credential = json!({
                "name": label(&variable.name), "source": {"env": variable.name}, "env": variable.name, "hosts": hosts,
            });
            if variable.decode.is_some() {
                credential["shape"] = json!("JWT");
            }
            match pair {
                Some(pair) if pair.secret_access_key_var == variable.name => {
                    credential["shape"] = json!("AWSSecretAccessKey");
                    credential["aws"] = json!({"accessKeyId": label(&pair.access_key_id_var)});
                    if let Some(token) = pair.session_token_var.as_ref().filter(|token| is_set(token)) {
                        credential["aws"]["sessionToken"] = json!(label(token));
                    }
                }
                Some(pair) if pair.access_key_id_var == variable.name => {
                    credential["shape"] = json!("AWSAccessKeyId");
                }
                _ => {}
            }
            offered.push(credential);
        }
        offered
    }
}

impl Pair {
    fn names(&self) -> impl Iterator<Item = &str> {
        let all = [
            Some(&self.access_key_id_var),
            Some(&self.secret_access_key_var),
            self.session_token_var.as_ref(),
        ];
        all.into_iter().flatten().map(String::as_str)
    }
}

impl Variable {
    /// Returns the hosts to which the value may go: those that are listed, else all that are allowed.
    fn hosts(&self, field: &str, hosts: &Hosts<'_>, notes: &mut Notes) -> Vec<HostPattern> {
        let allowed = domains::names(hosts.allowed);
        let excluded = domains::names(hosts.excluded);
        let field = format!("{field}.injectHosts");
        let refused = notes.refusals.len();
        let mut found = match &self.inject_hosts {
            None => {
                let is_out = |host: &&HostPattern| !excluded.iter().any(|out| covers(out, host));
                allowed.iter().filter(is_out).cloned().collect()
            }
            Some(texts) => {
                let listed = domains::patterns(&field, texts, notes);
                if listed.len() < texts.len() && notes.refusals.len() == refused {
                    notes.refuse(&field, "a value goes to names alone, not to addresses");
                }
                for host in &listed {
                    if !allowed.iter().any(|wide| covers(wide, host)) {
                        notes.refuse(&field, format!("{host}: not in network.allowedDomains"));
                    }
                }
                listed
            }
        };
        found.dedup();
        if found.is_empty() && notes.refusals.len() == refused {
            notes.refuse(&field, "the value may go to no host");
        }
        for host in &found {
            if let Some(out) = excluded.iter().find(|out| covers(host, out) || covers(out, host)) {
                let why = format!("{host}: network.tlsTerminate excludes {out}, to which no value can go");
                notes.refuse(&field, why);
            }
        }
        found
    }
}

/// Reads the credentials of a policy with these rules.
///
/// # Errors
/// The first field that is invalid.
pub(crate) fn checked(rules: &[EgressRule], offered: Vec<Value>) -> anyhow::Result<Vec<Credential>> {
    let credentials: Vec<Credential> =
        serde_json::from_value(Value::Array(offered)).context("credentials")?;
    let object: PolicyObject = serde_json::from_value(json!({
        "apiVersion": "policy.hutch.dev/v1alpha1",
        "kind": "SandboxPolicy",
        "metadata": {"name": "srt"},
        "spec": {"egress": {"rules": rules}, "credentials": credentials},
    }))?;
    object.check_for_command().map_err(|error| {
        let number = error.field.split(['[', ']']).nth(1).and_then(|number| number.parse::<usize>().ok());
        match number.and_then(|number| credentials.get(number)).and_then(|one| one.env.as_deref()) {
            Some(variable) => anyhow::anyhow!("{VARIABLES}: {}: {}", variable.escape_debug(), error.reason),
            None => anyhow::anyhow!("credentials: {}", error.reason),
        }
    })?;
    Ok(credentials)
}

/// Refuses what has a placeholder for a part of the value.
fn note_parts(field: &str, variable: &Variable, notes: &mut Notes) {
    for (name, is_there) in [
        ("extract", variable.extract.is_some()),
        ("maskClaims", variable.mask_claims.is_some()),
        ("onExtractNoMatch", variable.on_extract_no_match.is_some()),
    ] {
        if is_there {
            notes.refuse(&format!("{field}.{name}"), "a placeholder stands for a whole value");
        }
    }
}

/// Takes a list of objects out of the keys, each with its path.
fn list<T: DeserializeOwned>(
    found: &mut BTreeMap<String, Value>,
    key: &str,
) -> anyhow::Result<Vec<(String, T)>> {
    let entries = match found.remove(key) {
        None => Vec::new(),
        Some(Value::Array(entries)) => entries,
        Some(_) => bail!("{key}: not a list"),
    };
    let read = |(index, entry): (usize, Value)| {
        let field = format!("{key}[{index}]");
        let entry = serde_json::from_value(entry).map_err(|error| {
            // A name in it is as the file has it.
            anyhow::anyhow!("{}", error.to_string().escape_debug())
        });
        Ok((field.clone(), entry.context(field)?))
    };
    entries.into_iter().enumerate().map(read).collect()
}

/// Returns the name of the credential of a variable.
fn label(variable: &str) -> String {
    variable.to_ascii_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn offered(credentials: &Value, network: &Value, set: &[&str]) -> (Vec<Value>, Notes) {
        let mut notes = Notes::default();
        let text = json!({"credentials": credentials, "network": network}).to_string();
        let settings = Settings::parse(&text, &mut notes).unwrap();
        let offered = settings.offered(|name| set.contains(&name), &mut notes);
        (offered, notes)
    }

    fn network() -> Value {
        json!({
            "allowedDomains": ["api.example:443", "*.b.example", "192.0.2.1", "out.example"],
            "tlsTerminate": {"excludeDomains": ["out.example"]},
        })
    }

    #[test]
    fn masked_variable_is_a_credential_for_its_hosts() {
        let variables = json!({"envVars": [
            {"name": "TOKEN", "mode": "mask", "injectHosts": ["x.b.example"]},
            {"name": "OTHER", "mode": "mask", "decode": "jwt"},
            {"name": "UNSET", "mode": "mask"},
            {"name": "CLOSED", "mode": "deny", "extract": "ignored"},
        ]});
        let (offered, notes) = offered(&variables, &network(), &["TOKEN", "OTHER", "CLOSED"]);
        assert!(notes.refusals.is_empty(), "{notes:?}");
        assert!(
            notes.changes.iter().any(|line| line.starts_with("credentials.envVars[2].name: ")),
            "{notes:?}"
        );
        assert_eq!(
            offered,
            [
                json!({"name": "token", "source": {"env": "TOKEN"}, "env": "TOKEN", "hosts": ["x.b.example"]}),
                json!({"name": "other", "source": {"env": "OTHER"}, "env": "OTHER", "shape": "JWT",
                    "hosts": ["api.example", "**.b.example"]}),
            ]
        );
    }

    #[test]
    fn variables_of_one_key_of_aws_sign_for_the_hosts_of_its_id() {
        let masked = |name: &str| json!({"name": name, "mode": "mask", "injectHosts": ["x.b.example"]});
        let other = json!({"name": "MY_SECRET", "mode": "mask"});
        let usual = AWS.map(masked);
        let (found, notes) = offered(&json!({"envVars": usual}), &network(), &AWS);
        assert!(notes.refusals.is_empty(), "{notes:?}");
        let aws = json!({"accessKeyId": "aws-access-key-id", "sessionToken": "aws-session-token"});
        assert_eq!((&found[1]["aws"], found[0].get("aws")), (&aws, None));
        let pairs = json!([{"accessKeyIdVar": "MY_ID", "secretAccessKeyVar": "MY_SECRET"}]);
        let named =
            json!({"envVars": [masked("MY_ID"), other], "awsPairs": pairs, "sigv4": {"streaming": "deny"}});
        let (found, notes) = offered(&named, &network(), &["MY_ID", "MY_SECRET"]);
        assert!(notes.refusals.is_empty(), "{notes:?}");
        assert_eq!(found[1]["aws"], json!({"accessKeyId": "my-id"}));
        assert_eq!(
            (&found[1]["hosts"], &found[0]["shape"]),
            (&json!(["x.b.example"]), &json!("AWSAccessKeyId"))
        );
        let (found, _) = offered(&named, &network(), &["MY_SECRET"]);
        assert_eq!(found[0].get("aws"), None, "without its id, it is a value as any other");
    }

    #[test]
    fn what_has_no_equivalent_is_refused_by_its_path() {
        let one = |more: Value| {
            let mut variable = json!({"name": "TOKEN", "mode": "mask", "injectHosts": ["api.example"]});
            variable.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"envVars": [variable]})
        };
        for (credentials, named) in [
            (one(json!({"extract": "(x)"})), "credentials.envVars[0].extract: "),
            (one(json!({"decode": "jwt", "maskClaims": ["a"]})), "credentials.envVars[0].maskClaims: "),
            (one(json!({"onExtractNoMatch": "deny"})), "credentials.envVars[0].onExtractNoMatch: "),
            (
                one(json!({"injectHosts": ["else.example"]})),
                "credentials.envVars[0].injectHosts: else.example: not",
            ),
            (
                one(json!({"injectHosts": []})),
                "credentials.envVars[0].injectHosts: the value may go to no host",
            ),
            (
                one(json!({"injectHosts": ["out.example"]})),
                "credentials.envVars[0].injectHosts: out.example: network",
            ),
            (one(json!({"injectHosts": ["api.example:443"]})), "credentials.envVars[0].injectHosts[0]: "),
            (json!({"files": [{"path": "a", "mode": "mask"}]}), "credentials.files[0].mode: "),
            (
                json!({"envVars": [{"name": "A", "mode": "deny"}, {"name": "A", "mode": "deny"}]}),
                "credentials.envVars[1].name: ",
            ),
            (json!({"envVars": [{"name": "PATH", "mode": "deny"}]}), "credentials.envVars[0].name: "),
            (json!({"allowPlaintextInject": true}), "credentials.allowPlaintextInject: "),
            (json!({"sigv4": {"presigned": "passthrough"}}), "credentials.sigv4.presigned: "),
        ] {
            let (_, notes) = offered(&credentials, &network(), &["TOKEN"]);
            let lines = &notes.refusals;
            assert!(lines.len() == 1 && lines[0].starts_with(named), "{credentials}: {lines:?}");
        }
        let (_, notes) = offered(&one(json!({})), &json!({"allowedDomains": ["api.example"]}), &["TOKEN"]);
        assert_eq!(notes.refusals, ["credentials: `mask` needs network.tlsTerminate"]);
        for (credentials, named) in [
            (json!({"envVars": {}}), "credentials.envVars: not a list"),
            (json!({"envVars": [{"name": "A"}]}), "credentials.envVars[0]"),
            (json!({"files": [{"path": "a", "mode": "deny", "x": 1}]}), "credentials.files[0]"),
            (
                json!({"awsPairs": [{"accessKeyIdVar": "A", "secretAccessKeyVar": "B"}]}),
                "credentials.awsPairs[0]: `A`",
            ),
            (json!({"injectHosts": []}), "credentials.injectHosts: unknown key"),
        ] {
            let text = json!({"credentials": credentials}).to_string();
            let error = Settings::parse(&text, &mut Notes::default()).unwrap_err();
            assert!(format!("{error:#}").starts_with(named), "{error:#}");
        }
    }
}
