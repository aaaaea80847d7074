//! Credentials that a sandbox uses without having them: where they come from, and where they may go.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::budget::Time;
use crate::destination::{Decision, Destination};
use crate::host::Host;
use crate::http::{PathPattern, covers_path};
use crate::pattern::HostPattern;
use crate::ports::PortRange;
use crate::rule::EgressRule;

/// Maximum credentials of a policy.
pub(crate) const CREDENTIALS: usize = 16;
/// Maximum entries of a list.
pub(crate) const ENTRIES: usize = 64;
/// Maximum bytes of a name, of a format and of the name of a variable or header.
pub(crate) const NAME: usize = 63;
pub(crate) const FORMAT: usize = 256;
/// Place of the value in a format.
pub const PLACE: &str = "{}";
/// Port of HTTPS: the default.
const HTTPS: u16 = 443;

/// Headers that decide where a request goes or where it ends.
pub(crate) const CLOSED: [&str; 12] = [
    "connection",
    "content-length",
    "content-type",
    "content-encoding",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-connection",
];

/// Variables that say where programs, libraries, authorities or proxies are, beside those that end with `_PROXY`.
pub(crate) const OF_SYSTEM: [&str; 18] = [
    "PATH",
    "HOME",
    "HOSTNAME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "TMPDIR",
    "LANG",
    "TERM",
    "IFS",
    "ENV",
    "BASH_ENV",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "DENO_CERT",
];
/// Beginnings of the names of such variables.
pub(crate) const OF_SYSTEM_FROM: [&str; 7] =
    ["LD_", "SSL_CERT_", "NODE_", "PYTHON", "GIT_SSL_", "CARGO_HTTP_", "LC_"];

/// Credential that a policy offers. The sandbox has a placeholder; the value stands in the requests that the proxy sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Credential {
    /// Name, by which rules and messages mean it.
    pub name: String,
    /// Name of the CredentialProvider that has the value, on a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Source of the value, for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Where the value may go.
    #[serde(flatten)]
    pub binding: Binding,
    /// Variable of the environment that has the placeholder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// Shape of the placeholder; without it, the one that the name of the variable suggests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Time after the start of the sandbox from which on the value is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
}

/// Requests in which a value may stand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// Names of hosts.
    pub hosts: Vec<HostPattern>,
    /// Ports; without any, 443.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRange>,
    /// Paths; without any, every path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathPattern>,
    /// The only header that has the value. A request without this header gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Content of that header, with `{}` for the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The value may also stand in bodies of JSON and of forms.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub body: bool,
    /// The value is a secret access key of AWS. It stands in no request: the proxy signs with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<Aws>,
}

/// How requests for AWS are signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Aws {
    /// Name of the credential that has the access key id.
    pub access_key_id: String,
    /// Name of the credential that has the session token, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_token: Option<String>,
}

/// Source of a value on the machine of the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Source {
    /// File; white space at its end does not count.
    File(PathBuf),
    /// Variable of the environment.
    Env(String),
}

/// Shape of a placeholder, which client libraries check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// Letters and digits.
    Generic,
    /// Token of GitHub: `ghp_` and 36 letters and digits.
    GitHub,
    /// Key of OpenAI: `sk-` and 48 letters and digits.
    OpenAI,
    /// Key of Anthropic: `sk-ant-api03-` and 95 characters.
    Anthropic,
    /// JSON Web Token that is signed by no key.
    #[serde(rename = "JWT")]
    Jwt,
    /// Id of an access key of AWS.
    #[serde(rename = "AWSAccessKeyId")]
    AwsAccessKeyId,
    /// Secret access key of AWS.
    #[serde(rename = "AWSSecretAccessKey")]
    AwsSecretAccessKey,
}

impl Binding {
    /// Returns true if the value may go to the destination, with some path.
    pub fn covers(&self, destination: &Destination) -> bool {
        let Host::Name(name) = &destination.host else { return false };
        let port = destination.port.get();
        let ports = match self.ports.as_slice() {
            [] => port == HTTPS,
            ports => ports.iter().any(|range| range.contains(port)),
        };
        ports && self.hosts.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns true if the value may stand in requests with this path.
    pub fn covers_path(&self, path: &crate::request::Path) -> bool {
        self.paths.is_empty() || covers_path(&self.paths, path, false)
    }

    /// Returns the content of the header, in which the value takes the place of `{}`.
    pub fn format(&self) -> &str {
        self.format.as_deref().unwrap_or(PLACE)
    }
}

impl Credential {
    /// Returns the shape of the placeholder.
    pub fn shape(&self) -> Shape {
        self.shape.unwrap_or(match self.env.as_deref() {
            Some("GITHUB_TOKEN" | "GH_TOKEN") => Shape::GitHub,
            Some("OPENAI_API_KEY") => Shape::OpenAI,
            Some("ANTHROPIC_API_KEY") => Shape::Anthropic,
            Some("AWS_ACCESS_KEY_ID") => Shape::AwsAccessKeyId,
            Some("AWS_SECRET_ACCESS_KEY") => Shape::AwsSecretAccessKey,
            _ => Shape::Generic,
        })
    }

    fn check(&self, field: impl Fn(&str) -> String) -> Result<(), Mistake> {
        let invalid = |name: &str, reason: String| Err((field(name), reason));
        if !is_label(&self.name) {
            return invalid(".name", "must be lower-case letters, digits and `-`, at most 63".to_owned());
        }
        match (&self.provider, &self.source) {
            (Some(_), Some(_)) => return invalid(".source", "has no effect with `provider`".to_owned()),
            (None, None) => {
                return invalid("", "needs either `provider` or, for a command, `source`".to_owned());
            }
            _ => {}
        }
        let Binding { hosts, ports, paths, header, format, .. } = &self.binding;
        if hosts.is_empty() {
            return invalid(".hosts", "needs at least one host, to which the value may go".to_owned());
        }
        for (name, length) in [(".hosts", hosts.len()), (".ports", ports.len()), (".paths", paths.len())] {
            if length > ENTRIES {
                return invalid(name, format!("at most {ENTRIES} entries"));
            }
        }
        if self.binding.aws.is_some() && (header.is_some() || self.binding.body) {
            return invalid(".aws", "has no effect with `header` or `body`: the value only signs".to_owned());
        }
        match (header, format) {
            (None, Some(_)) => return invalid(".format", "has no effect without `header`".to_owned()),
            (Some(header), _)
                if header.len() > NAME
                    || !is_token(header)
                    || CLOSED.contains(&header.to_ascii_lowercase().as_str()) =>
            {
                return invalid(".header", format!("{header:?} is not a header that may have a value"));
            }
            (_, Some(format)) if !is_format(format) => {
                return invalid(
                    ".format",
                    format!("needs `{PLACE}` once, for the value, in printable ASCII"),
                );
            }
            _ => {}
        }
        match &self.env {
            Some(env) if !is_variable(env) => {
                invalid(".env", format!("{env:?} is not a name of a variable: letters, digits and `_`"))
            }
            Some(env) if is_of_system(env) => invalid(
                ".env",
                format!("{env:?} has another meaning for programs; choose a variable for a token"),
            ),
            None if header.is_none() => {
                invalid("", "needs `env`, `header` or both: else no program can use it".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Path of a field, and why it is invalid.
type Mistake = (String, String);

/// Checks the credentials of a policy: one of administrators, or one that only observes, offers none.
pub(crate) fn check_all(all: &[Credential], administers: bool, observes: bool) -> Result<(), Mistake> {
    let refuse = |field: String, reason: String| Err((field, reason));
    let why = match (administers, observes, all.len() > CREDENTIALS) {
        _ if all.is_empty() => return Ok(()),
        (true, ..) => "only a SandboxPolicy offers credentials; the rules of this one may exclude them",
        (_, true, _) => "has no effect with `mode: Observe`",
        (.., true) => "at most 16 entries",
        _ => "",
    };
    if !why.is_empty() {
        return refuse("spec.credentials".to_owned(), why.to_owned());
    }
    for (index, credential) in all.iter().enumerate() {
        let field = |name: &str| format!("spec.credentials[{index}]{name}");
        credential.check(field)?;
        let earlier = &all[..index];
        if earlier.iter().any(|other| other.name == credential.name) {
            return refuse(field(".name"), "is there twice".to_owned());
        }
        if credential.env.is_some() && earlier.iter().any(|other| other.env == credential.env) {
            return refuse(field(".env"), "is there twice".to_owned());
        }
        let is_plain = |other: &Credential, name: &str| other.name == name && other.binding.aws.is_none();
        let Some(Aws { access_key_id, session_token }) = &credential.binding.aws else { continue };
        for (of, name) in
            [(".aws.accessKeyId", Some(access_key_id)), (".aws.sessionToken", session_token.as_ref())]
        {
            let Some(missing) = name.filter(|name| !all.iter().any(|other| is_plain(other, name))) else {
                continue;
            };
            return refuse(field(of), format!("{missing:?} is not another credential of this policy"));
        }
    }
    Ok(())
}

/// Refuses credentials of providers, which a command does not have.
pub(crate) fn check_for_command(all: &[Credential]) -> Result<(), Mistake> {
    match all.iter().position(|one| one.provider.is_some()) {
        Some(index) => {
            let why = "a command has no providers; it needs `source`";
            Err((format!("spec.credentials[{index}].provider"), why.to_owned()))
        }
        None => Ok(()),
    }
}

/// Refuses sources of the caller's machine, which a server does not have.
pub(crate) fn check_for_server(all: &[Credential]) -> Result<(), Mistake> {
    match all.iter().position(|one| one.source.is_some()) {
        Some(index) => {
            let why =
                "only a command has `source`; a server needs `provider`, the name of a CredentialProvider";
            Err((format!("spec.credentials[{index}].source"), why.to_owned()))
        }
        None => Ok(()),
    }
}

/// Returns true if one of the credentials may go to the destination, so that its requests must be read.
pub(crate) fn any_covers(all: &[Credential], destination: &Destination) -> bool {
    all.iter().any(|credential| credential.binding.covers(destination))
}

/// Returns why the list of a rule is invalid or has no effect.
pub(crate) fn mistake_of_rule(rule: &EgressRule) -> Option<String> {
    let names = rule.credentials.as_ref()?;
    if names.len() > ENTRIES || names.iter().any(|name| !is_label(name)) {
        return Some(format!("must be names of credentials, at most {ENTRIES}"));
    }
    let reads = rule.protocol.is_auto() && rule.tls.is_auto() && rule.decision != Decision::Deny;
    (!reads).then(|| "has no effect in a rule that denies or does not read requests".to_owned())
}

/// Returns true for the name of a credential.
pub(crate) fn is_label(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=NAME).contains(&name.len())
        && name.starts_with(alphanumeric)
        && name.ends_with(alphanumeric)
        && name.chars().all(|c| alphanumeric(c) || c == '-')
}

/// Returns true for what can be the name of a header.
pub(crate) fn is_token(name: &str) -> bool {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !name.is_empty() && name.chars().all(token)
}

fn is_format(format: &str) -> bool {
    format.len() <= FORMAT
        && format.matches(PLACE).count() == 1
        && format.chars().all(|c| (' '..='~').contains(&c))
        && format.trim() == format
}

/// Returns true for variables that say where programs, libraries, authorities or proxies are.
fn is_of_system(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    OF_SYSTEM.contains(&name)
        || upper.ends_with("_PROXY")
        || OF_SYSTEM_FROM.iter().any(|start| name.starts_with(start))
}

pub(crate) fn is_variable(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    (1..=NAME).contains(&name.len())
        && name.starts_with(letter)
        && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use crate::decide::{Authority, Level};
    use crate::object::PolicyObject;

    fn policy(spec: &str) -> Result<Level, String> {
        let text = format!(
            r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "p"}}, "spec": {spec}}}"#
        );
        let object: PolicyObject = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        object.into_level(Authority::Namespace).map_err(|error| error.to_string())
    }

    fn credential(more: &str) -> String {
        format!(
            r#"{{"credentials": [{{"name": "github", "source": {{"env": "T"}}, "hosts": ["api.github.com"], {more}}}]}}"#
        )
    }

    #[test]
    fn invalid_credential_is_refused_by_field() {
        assert!(policy(&credential(r#""env": "GITHUB_TOKEN""#)).is_ok());
        for (spec, expected) in [
            (credential(r#""env": "A B""#), "spec.credentials[0].env: "),
            (credential(r#""env": "PATH""#), "spec.credentials[0].env: \"PATH\" has another meaning"),
            (credential(r#""env": "SSL_CERT_FILE""#), "spec.credentials[0].env: "),
            (credential(r#""env": "https_proxy""#), "spec.credentials[0].env: "),
            (credential(r#""paths": ["/a"]"#), "spec.credentials[0]: needs `env`, `header`"),
            (credential(r#""header": "Host""#), "spec.credentials[0].header: "),
            (credential(r#""header": "a b""#), "spec.credentials[0].header: "),
            (credential(r#""header": "X", "format": "Bearer""#), "spec.credentials[0].format: "),
            (credential(r#""header": "X", "format": "{}\n""#), "spec.credentials[0].format: "),
            (credential(r#""env": "A", "format": "{}""#), "spec.credentials[0].format: has no effect"),
            (credential(r#""env": "A", "provider": "x""#), "spec.credentials[0].source: has no effect"),
            (credential(r#""env": "A", "expires": "soon""#), "is not a time"),
            (credential(r#""env": "A", "value": "secret""#), "unknown field `value`"),
            (credential(r#""env": "A", "shape": "Stripe""#), "unknown variant"),
            (credential(r#""env": "A", "aws": {"accessKeyId": "github"}"#), "spec.credentials[0].aws.accessKeyId: "),
            (
                credential(r#""env": "A"}, {"name": "key", "source": {"env": "T"}, "hosts": ["a.example"], "env": "B",
                    "aws": {"accessKeyId": "github", "sessionToken": "key"}"#),
                "spec.credentials[1].aws.sessionToken: \"key\" is not another",
            ),
            (credential(r#""header": "X", "aws": {"accessKeyId": "x"}"#), "spec.credentials[0].aws: has no effect"),
            (credential(r#""env": "A", "aws": {"key": "x"}"#), "unknown field `key`"),
            (
                r#"{"credentials": [{"name": "A", "provider": "x", "hosts": ["a.example"], "env": "A"}]}"#.into(),
                "spec.credentials[0].name: ",
            ),
            (
                r#"{"credentials": [{"name": "a", "hosts": ["a.example"], "env": "A"}]}"#.into(),
                "spec.credentials[0]: needs either `provider`",
            ),
            (
                r#"{"credentials": [{"name": "a", "provider": "x", "hosts": [], "env": "A"}]}"#.into(),
                "spec.credentials[0].hosts: ",
            ),
            (
                r#"{"mode": "Observe", "credentials": [{"name": "a", "provider": "x", "hosts": ["a.example"], "env": "A"}]}"#.into(),
                "spec.credentials: has no effect",
            ),
        ] {
            let error = policy(&spec).unwrap_err();
            assert!(error.contains(expected), "{spec}: {error}");
        }
        let twice = r#"{"name": "a", "provider": "x", "hosts": ["a.example"], "env": "A"}"#;
        let error = policy(&format!(r#"{{"credentials": [{twice}, {twice}]}}"#)).unwrap_err();
        assert!(error.contains("spec.credentials[1].name: is there twice"), "{error}");
    }

    #[test]
    fn value_goes_only_to_bound_hosts_ports_and_paths() {
        let level = policy(&credential(r#""env": "A", "paths": ["/repos/**"]"#)).unwrap();
        let binding = &level.credentials[0].binding;
        for (destination, covered) in [
            ("api.github.com", true),
            ("API.github.com.:443", true),
            ("api.github.com:8443", false),
            ("github.com", false),
            ("x.api.github.com", false),
            ("192.0.2.1:443", false),
        ] {
            assert_eq!(binding.covers(&destination.parse().unwrap()), covered, "{destination}");
        }
        let path = |path: &str| crate::request::Path::read(path).unwrap();
        assert!(binding.covers_path(&path("/repos/a")) && !binding.covers_path(&path("/user")));
    }

    #[test]
    fn parameters_of_a_path_do_not_widen_a_binding() {
        let level = policy(&credential(r#""env": "A", "paths": ["/repos*/a"]"#)).unwrap();
        let binding = &level.credentials[0].binding;
        for (path, covered) in
            [("/repos/a", true), ("/repos-2/a", true), ("/repos-2;x/a", true), ("/reposx;/b;/a", false)]
        {
            let read = crate::request::Path::read(path).unwrap();
            assert_eq!(binding.covers_path(&read), covered, "{path}");
        }
        let level = policy(&credential(r#""env": "A", "paths": ["/*admin"]"#)).unwrap();
        let hidden = crate::request::Path::read("/user;admin").unwrap();
        assert!(!level.credentials[0].binding.covers_path(&hidden), "a server reads /user");
    }

    #[test]
    fn server_refuses_sources_of_a_command_and_a_command_providers() {
        let object = |source: &str| -> PolicyObject {
            let text = format!(
                r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "p"}}, "spec":
                    {{"credentials": [{{"name": "a", "hosts": ["a.example"], "env": "A", {source}}}]}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let own = object(r#""source": {"env": "T"}"#);
        assert_eq!(own.check_for_command(), Ok(()));
        assert_eq!(own.check_for_server().unwrap_err().field, "spec.credentials[0].source");
        let provided = object(r#""provider": "x""#);
        assert_eq!(provided.check_for_server(), Ok(()));
        assert_eq!(provided.check_for_command().unwrap_err().field, "spec.credentials[0].provider");
    }
}
