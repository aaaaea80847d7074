//! Settings of Anthropic's sandbox-runtime (`srt`), version 0.0.78: a JSON object.
//!
//! Every key of the format is in [`KEYS`], with what becomes of it. Another key is an error.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use hutch_policy::{EgressRule, FileRule};
use serde_json::{Map, Value};

use self::credentials::Credentials;
use self::tls::Terminate;
use super::Notes;
use crate::upstream_proxy::ProxyUrl;

pub(crate) mod credentials;
mod domains;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;
mod proxy;
mod ranges;
mod tls;

/// Treatment of a key.
#[derive(Clone, Copy)]
enum Key {
    /// It has an effect.
    Used,
    /// An object with keys of its own.
    Object,
    /// It cannot be enforced, for this reason; `false` is as if it were not there.
    Refused(&'static str),
    /// It has no effect here.
    Ignored(Why),
}

/// Reason why a key has no effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    OtherSystem,
    Machinery,
    OwnNetwork,
    OwnSockets,
}

impl Why {
    fn text(self) -> &'static str {
        match self {
            Why::OtherSystem => "for macOS or Windows",
            Why::Machinery => "for programs of srt itself",
            Why::OwnNetwork => "a sandbox has a network of its own, on which it may listen",
            Why::OwnSockets => "a sandbox reaches only sockets in folders that it sees",
        }
    }
}

const OWN_AUTHORITY: &str = "a sandbox has an authority of its own, whose key no file holds";
const PLAIN: &str = "values go only to servers that the proxy has verified by TLS";
const NO_PROXY: &str = "another proxy cannot be put in the place of the sandbox's own";

/// The keys of the format.
const KEYS: [(&str, Key); 53] = [
    ("network", Key::Object),
    ("network.allowedDomains", Key::Used),
    ("network.deniedDomains", Key::Used),
    ("network.deniedDomainReasons", Key::Used),
    ("network.strictAllowlist", Key::Used),
    ("network.deniedResolvedAddresses", Key::Used),
    ("network.allowUnixSockets", Key::Ignored(Why::OtherSystem)),
    ("network.allowAllUnixSockets", Key::Ignored(Why::OwnSockets)),
    ("network.allowLocalBinding", Key::Ignored(Why::OwnNetwork)),
    ("network.allowMachLookup", Key::Ignored(Why::OtherSystem)),
    ("network.httpProxyPort", Key::Refused(NO_PROXY)),
    ("network.socksProxyPort", Key::Refused(NO_PROXY)),
    ("network.mitmProxy", Key::Refused(NO_PROXY)),
    ("network.parentProxy", Key::Object),
    ("network.parentProxy.http", Key::Used),
    ("network.parentProxy.https", Key::Used),
    ("network.parentProxy.noProxy", Key::Used),
    ("network.filterRequest", Key::Refused("a function of a JavaScript program, which a file cannot have")),
    ("network.tlsTerminate", Key::Object),
    ("network.tlsTerminate.caCertPath", Key::Refused(OWN_AUTHORITY)),
    ("network.tlsTerminate.caKeyPath", Key::Refused(OWN_AUTHORITY)),
    ("network.tlsTerminate.excludeDomains", Key::Used),
    ("network.tlsTerminate.extraCaCertPaths", Key::Used),
    ("filesystem", Key::Object),
    ("filesystem.disabled", Key::Refused("a sandbox always has a file system of its own")),
    ("filesystem.denyRead", Key::Used),
    ("filesystem.allowRead", Key::Used),
    ("filesystem.allowWrite", Key::Used),
    ("filesystem.denyWrite", Key::Used),
    ("filesystem.allowGitConfig", Key::Used),
    ("credentials", Key::Object),
    ("credentials.files", Key::Used),
    ("credentials.envVars", Key::Used),
    ("credentials.allowPlaintextInject", Key::Refused(PLAIN)),
    ("credentials.awsPairs", Key::Used),
    ("credentials.sigv4", Key::Object),
    ("credentials.sigv4.streaming", Key::Used),
    ("credentials.sigv4.presigned", Key::Used),
    ("credentials.sigv4.sigv4a", Key::Used),
    ("git", Key::Object),
    ("git.safeDirectories", Key::Used),
    ("ignoreViolations", Key::Ignored(Why::Machinery)),
    ("ripgrep", Key::Ignored(Why::Machinery)),
    ("mandatoryDenySearchDepth", Key::Ignored(Why::Machinery)),
    ("seccomp", Key::Ignored(Why::Machinery)),
    ("bwrapPath", Key::Ignored(Why::Machinery)),
    ("socatPath", Key::Ignored(Why::Machinery)),
    ("javaAgentJarPath", Key::Ignored(Why::Machinery)),
    ("enableWeakerNestedSandbox", Key::Ignored(Why::Machinery)),
    ("enableWeakerNetworkIsolation", Key::Ignored(Why::OtherSystem)),
    ("allowAppleEvents", Key::Ignored(Why::OtherSystem)),
    ("allowPty", Key::Ignored(Why::OtherSystem)),
    ("windows", Key::Ignored(Why::OtherSystem)),
];

/// Settings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) network: Network,
    pub(crate) filesystem: Filesystem,
    pub(crate) credentials: Credentials,
    /// Folders that git takes for safe.
    pub(crate) safe_directories: Vec<String>,
}

/// Settings of the network.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Network {
    allowed: Vec<String>,
    denied: Vec<String>,
    reasons: BTreeMap<String, String>,
    strict: bool,
    denied_addresses: Vec<String>,
    /// Proxy outside.
    pub(crate) parent: Option<ProxyUrl>,
    /// TLS ends at the proxy.
    pub(crate) terminate: Option<Terminate>,
}

/// Settings of files: paths as they are written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Filesystem {
    pub(crate) deny_read: Vec<String>,
    pub(crate) allow_read: Vec<String>,
    pub(crate) allow_write: Vec<String>,
    pub(crate) deny_write: Vec<String>,
    pub(crate) allow_git_config: bool,
}

impl Settings {
    /// Reads a file of the format.
    ///
    /// # Errors
    /// A key that is unknown, by its path, or a value of another type.
    pub(crate) fn parse(text: &str, notes: &mut Notes) -> anyhow::Result<Settings> {
        let mut found = BTreeMap::new();
        let object: Map<String, Value> = serde_json::from_str(text).context("not a JSON object")?;
        let mut ignored: BTreeMap<Why, Vec<String>> = BTreeMap::new();
        collect("", object, &mut found, &mut ignored, notes)?;
        for (why, keys) in ignored {
            notes.changes.push(format!("{}: no effect: {}", keys.join(", "), why.text()));
        }
        let parent = proxy::parse(&mut found, notes)?;
        let terminate = Terminate::parse(&mut found)?;
        let credentials = Credentials::parse(&mut found, terminate.is_some(), notes)?;
        let mut strings = |key: &str| strings(&mut found, key);
        let [allowed, denied] = ["network.allowedDomains", "network.deniedDomains"].map(&mut strings);
        let denied_addresses = strings("network.deniedResolvedAddresses")?;
        let [deny_read, allow_read] = ["filesystem.denyRead", "filesystem.allowRead"].map(&mut strings);
        let [allow_write, deny_write] = ["filesystem.allowWrite", "filesystem.denyWrite"].map(&mut strings);
        let safe_directories = strings("git.safeDirectories")?;
        let mut flag = |key: &str| match found.remove(key) {
            None => Ok(false),
            Some(value) => value.as_bool().with_context(|| format!("{key}: neither true nor false")),
        };
        let (strict, allow_git_config) =
            (flag("network.strictAllowlist")?, flag("filesystem.allowGitConfig")?);
        let reasons = match found.remove("network.deniedDomainReasons") {
            None => BTreeMap::new(),
            Some(value) => serde_json::from_value(value)
                .context("network.deniedDomainReasons: not an object of texts")?,
        };
        Ok(Settings {
            network: Network {
                allowed: allowed?,
                denied: denied?,
                reasons,
                strict,
                denied_addresses,
                parent,
                terminate,
            },
            filesystem: Filesystem {
                deny_read: deny_read?,
                allow_read: allow_read?,
                allow_write: allow_write?,
                deny_write: deny_write?,
                allow_git_config,
            },
            credentials,
            safe_directories,
        })
    }

    /// Returns the rules for the network: none if it is closed.
    pub(crate) fn egress(&self, notes: &mut Notes) -> Vec<EgressRule> {
        let Network { allowed, denied, reasons, denied_addresses, terminate, .. } = &self.network;
        let (private, public) = ranges::private(denied_addresses, notes);
        let mut rules = domains::rules(&domains::Lists { allowed, denied, reasons }, &private, notes);
        if rules.is_empty() {
            return rules;
        }
        if let Some(terminate) = terminate {
            rules = terminate.rules(rules, notes);
        }
        rules.extend(ranges::rules(&public));
        if rules.len() > domains::RULES {
            let why =
                format!("with them it makes {} rules; a policy has at most {}", rules.len(), domains::RULES);
            notes.refuse("network.deniedResolvedAddresses", why);
        }
        if self.network.parent.is_some() && !public.is_empty() {
            let what = "no effect on names, which the proxy of network.parentProxy resolves";
            notes.change("network.deniedResolvedAddresses", what);
        }
        rules
    }

    /// Returns the rules for files.
    pub(crate) fn files(&self, notes: &mut Notes) -> Vec<FileRule> {
        self.filesystem.rules(&self.credentials.deny_files, notes)
    }

    /// Returns the credentials whose variables `is_set`, as fields of a policy.
    pub(crate) fn offered(&self, is_set: impl Fn(&str) -> bool, notes: &mut Notes) -> Vec<Value> {
        let excluded = self.network.terminate.as_ref().map_or(&[][..], |terminate| &terminate.exclude);
        let hosts = credentials::Hosts { allowed: &self.network.allowed, excluded };
        self.credentials.offered(&hosts, is_set, notes)
    }

    /// Notes the fields that are no part of a policy. Programs that embed srt may ask about hosts that are not listed.
    pub(crate) fn note_rest(&self, notes: &mut Notes) {
        if !self.network.strict && !self.network.allowed.is_empty() {
            let what = "hosts that are not listed are refused; there is no question";
            notes.change("network.strictAllowlist", what);
        }
        for (field, is_there) in [
            ("network.parentProxy", self.network.parent.is_some()),
            (
                "network.tlsTerminate.extraCaCertPaths",
                self.network.terminate.as_ref().is_some_and(|terminate| !terminate.authorities.is_empty()),
            ),
            ("credentials.envVars", self.credentials.has_variables()),
            ("git", !self.safe_directories.is_empty()),
        ] {
            if is_there {
                notes.change(field, "no part of a policy; `hutch run --settings` applies it");
            }
        }
    }
}

/// Takes a list of texts out of the keys.
fn strings(found: &mut BTreeMap<String, Value>, key: &str) -> anyhow::Result<Vec<String>> {
    match found.remove(key) {
        None => Ok(Vec::new()),
        Some(value) => serde_json::from_value(value).with_context(|| format!("{key}: not a list of texts")),
    }
}

/// Sorts the keys of an object by their treatment.
fn collect(
    above: &str,
    object: Map<String, Value>,
    found: &mut BTreeMap<String, Value>,
    ignored: &mut BTreeMap<Why, Vec<String>>,
    notes: &mut Notes,
) -> anyhow::Result<()> {
    for (name, value) in object {
        let path = if above.is_empty() { name } else { format!("{above}.{name}") };
        let Some((_, key)) = KEYS.iter().find(|(known, _)| *known == path) else {
            bail!("{}: unknown key", path.escape_debug());
        };
        match (key, value) {
            (Key::Used, value) => drop(found.insert(path, value)),
            (Key::Object, Value::Object(inner)) => {
                collect(&path, inner, found, ignored, notes)?;
                // An empty one can have a meaning.
                found.insert(path, Value::Null);
            }
            (Key::Object, _) => bail!("{path}: not an object"),
            (Key::Refused(_), Value::Bool(false)) => {}
            (Key::Refused(why), _) => notes.refuse(&path, why),
            (Key::Ignored(why), _) => ignored.entry(*why).or_default().push(path),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Result<Settings, String>, Notes) {
        let mut notes = Notes::default();
        let settings = Settings::parse(text, &mut notes).map_err(|error| format!("{error:#}"));
        (settings, notes)
    }

    #[test]
    fn unknown_key_and_value_of_another_type_are_errors_by_path() {
        for (text, expected) in [
            (r#"{"networks": {}}"#, "networks: unknown key"),
            (r#"{"network": {"allowedHosts": []}}"#, "network.allowedHosts: unknown key"),
            (r#"{"filesystem": {"denyRead": ["a"], "x\ny": 1}}"#, "filesystem.x\\ny: unknown key"),
            (r#"{"network": []}"#, "network: not an object"),
            (r#"{"network": {"allowedDomains": "a"}}"#, "network.allowedDomains: not a list of texts"),
            (r#"{"network": {"strictAllowlist": 1}}"#, "network.strictAllowlist: neither"),
            (r#"{"network": {"deniedDomainReasons": {"a": 1}}}"#, "network.deniedDomainReasons"),
            ("[]", "not a JSON object"),
        ] {
            let error = parsed(text).0.unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_and_the_rest_is_one_line_for_each_reason() {
        let (_, notes) = parsed(
            r#"{"credentials": {"allowPlaintextInject": true}, "network": {"tlsTerminate": {"caCertPath": "x"},
                "parentProxy": {"http": "x"}, "mitmProxy": {}}, "filesystem": {"disabled": false}, "allowPty": true,
                "windows": {}, "seccomp": {}}"#,
        );
        let fields: Vec<&str> =
            notes.refusals.iter().filter_map(|line| line.split_once(": ")).map(|(field, _)| field).collect();
        let expected = [
            "credentials.allowPlaintextInject",
            "network.mitmProxy",
            "network.tlsTerminate.caCertPath",
            "network.parentProxy.http",
        ];
        assert_eq!(fields, expected);
        assert_eq!(
            notes.changes,
            [
                "allowPty, windows: no effect: for macOS or Windows",
                "seccomp: no effect: for programs of srt itself"
            ]
        );
        let (_, notes) = parsed(r#"{"filesystem": {"disabled": true}}"#);
        assert!(notes.refused().unwrap_err().to_string().starts_with("filesystem.disabled: "));
    }

    /// Treatment of each key, one by one.
    const TREATED: &str = "
        works network.allowedDomains network.deniedDomains network.deniedDomainReasons network.strictAllowlist
        works network.deniedResolvedAddresses network.parentProxy.http network.parentProxy.https
        works network.parentProxy.noProxy network.tlsTerminate.excludeDomains network.tlsTerminate.extraCaCertPaths
        works filesystem.denyRead filesystem.allowRead filesystem.allowWrite filesystem.denyWrite
        works filesystem.allowGitConfig credentials.files credentials.envVars credentials.awsPairs
        works credentials.sigv4.streaming credentials.sigv4.presigned credentials.sigv4.sigv4a git.safeDirectories
        object network network.parentProxy network.tlsTerminate filesystem credentials credentials.sigv4 git
        refused network.httpProxyPort network.socksProxyPort network.mitmProxy network.filterRequest
        refused network.tlsTerminate.caCertPath network.tlsTerminate.caKeyPath filesystem.disabled
        refused credentials.allowPlaintextInject
        ignored network.allowUnixSockets network.allowAllUnixSockets network.allowLocalBinding
        ignored network.allowMachLookup ignoreViolations ripgrep mandatoryDenySearchDepth seccomp bwrapPath
        ignored socatPath javaAgentJarPath enableWeakerNestedSandbox enableWeakerNetworkIsolation
        ignored allowAppleEvents allowPty windows
    ";

    #[test]
    fn each_key_works_is_refused_by_name_or_is_ignored_with_a_line() {
        let mut seen = 0;
        for line in TREATED.lines() {
            let mut words = line.split_whitespace();
            let Some(treatment) = words.next() else { continue };
            for key in words {
                seen += 1;
                let with = |value: Value| {
                    let nest =
                        |value: Value, name: &str| Value::Object(Map::from_iter([(name.to_owned(), value)]));
                    parsed(&key.rsplit('.').fold(value, nest).to_string())
                };
                // No key takes this value, unless it is refused or ignored whatever it says.
                let (settings, notes) = with(Value::from(1.5));
                let lines = |list: &[String]| {
                    list.iter().filter(|line| line.starts_with(&format!("{key}: "))).count()
                };
                match treatment {
                    "works" | "object" => {
                        // It is read: the value is an error, or a proxy that cannot be used.
                        let found = settings.map(|_| notes.refusals.join("\n")).unwrap_or_else(|error| error);
                        assert!(found.contains(key) && notes.changes.is_empty(), "{key}: {found} {notes:?}");
                    }
                    "refused" => {
                        assert!(settings.is_ok() && notes.changes.is_empty(), "{key}: {settings:?}");
                        assert_eq!(
                            (notes.refusals.len(), lines(&notes.refusals)),
                            (1, 1),
                            "{key}: {notes:?}"
                        );
                        assert_eq!(with(Value::Bool(false)).1.refusals, [""; 0], "{key}");
                    }
                    "ignored" => {
                        assert!(settings.is_ok() && notes.refusals.is_empty(), "{key}: {settings:?}");
                        assert_eq!((notes.changes.len(), lines(&notes.changes)), (1, 1), "{key}: {notes:?}");
                    }
                    other => panic!("{other}"),
                }
                assert!(KEYS.iter().any(|(known, _)| *known == key), "{key}");
            }
        }
        assert_eq!(seen, KEYS.len());
    }
}
