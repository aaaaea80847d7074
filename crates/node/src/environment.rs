//! The environment and command line of a container.

use std::collections::BTreeMap;

use hutch_api::quantity;
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, Pod, ResourceFieldSelector, Secret};

use crate::capacity::Amount;
use crate::config::DefaultLimits;
use crate::limits;

/// Most bytes of one container's environment: the kernel refuses more than a quarter of 8 MiB of stack.
const MAX_ENVIRONMENT_BYTES: usize = 1 << 20;

/// Objects that a container's environment refers to, fetched beforehand. A missing object is absent.
#[derive(Default)]
pub(crate) struct References {
    pub(crate) config_maps: BTreeMap<String, ConfigMap>,
    pub(crate) secrets: BTreeMap<String, Secret>,
}

/// Facts about the Pod that its containers can refer to.
#[derive(Debug, Clone)]
pub(crate) struct Facts<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) pod_ip: &'a str,
    pub(crate) host_ip: &'a str,
    pub(crate) node_name: &'a str,
    pub(crate) defaults: DefaultLimits,
    /// Resources that Pods may request from the node.
    pub(crate) allocatable: Amount,
}

/// Names of the ConfigMaps and Secrets that a container's environment needs.
pub(crate) fn names(container: &Container) -> (Vec<&str>, Vec<&str>) {
    let (mut maps, mut secrets) = (Vec::new(), Vec::new());
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.as_ref().map(|r| r.name.as_str()));
        secrets.extend(from.secret_ref.as_ref().map(|r| r.name.as_str()));
    }
    for source in container.env.iter().flatten().filter_map(|var| var.value_from.as_ref()) {
        maps.extend(source.config_map_key_ref.as_ref().map(|r| r.name.as_str()));
        secrets.extend(source.secret_key_ref.as_ref().map(|r| r.name.as_str()));
    }
    (maps, secrets)
}

/// The whole environment: the image's, then `envFrom`, then `env`, the later of two winning.
///
/// The error is for the user who wrote the Pod; it never holds a value.
pub(crate) fn environment(
    image: &[(String, String)],
    container: &Container,
    facts: &Facts<'_>,
    found: &References,
) -> Result<Vec<(String, String)>, String> {
    let mut set = Environment { order: Vec::new(), values: BTreeMap::new() };
    for (name, value) in image {
        set.put(name, value.clone());
    }
    set.put("HOSTNAME", hostname(facts.pod));
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or("");
        if let Some(source) = &from.config_map_ref {
            match found.config_maps.get(&source.name) {
                Some(map) => {
                    for (key, value) in map.data.iter().flatten() {
                        set.put(&format!("{prefix}{key}"), value.clone());
                    }
                }
                None if source.optional == Some(true) => {}
                None => return Err(format!("configmap {:?} not found", source.name)),
            }
        }
        if let Some(source) = &from.secret_ref {
            match found.secrets.get(&source.name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        set.put(&format!("{prefix}{key}"), text(&value.0, key)?);
                    }
                }
                None if source.optional == Some(true) => {}
                None => return Err(format!("secret {:?} not found", source.name)),
            }
        }
    }
    for var in container.env.iter().flatten() {
        if let Some(value) = value_of(var, container, facts, found, &set)? {
            set.put(&var.name, value);
        }
    }
    set.finish()
}

struct Environment {
    order: Vec<String>,
    values: BTreeMap<String, String>,
}

impl Environment {
    fn put(&mut self, name: &str, value: String) {
        if self.values.insert(name.to_owned(), value).is_none() {
            self.order.push(name.to_owned());
        }
    }

    fn finish(mut self) -> Result<Vec<(String, String)>, String> {
        let mut bytes = 0;
        let mut all = Vec::with_capacity(self.order.len());
        for name in self.order {
            let value = self.values.remove(&name).unwrap_or_default();
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(format!("environment variable {name:?} is not valid"));
            }
            bytes += name.len() + value.len() + 2;
            all.push((name, value));
        }
        match bytes > MAX_ENVIRONMENT_BYTES {
            true => Err(format!("the environment is larger than {MAX_ENVIRONMENT_BYTES} bytes")),
            false => Ok(all),
        }
    }
}

/// The value of one variable; nothing when an optional source is missing.
fn value_of(
    var: &EnvVar,
    container: &Container,
    facts: &Facts<'_>,
    found: &References,
    set: &Environment,
) -> Result<Option<String>, String> {
    let Some(source) = &var.value_from else {
        let value = var.value.as_deref().unwrap_or("");
        return Ok(Some(expand(value, |name| set.values.get(name).cloned())));
    };
    if let Some(field) = &source.field_ref {
        return field_value(&field.field_path, facts).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        return resource_value(resource, container, facts).map(Some);
    }
    if let Some(key) = &source.config_map_key_ref {
        let map = found.config_maps.get(&key.name);
        let value = map.and_then(|map| map.data.as_ref()).and_then(|data| data.get(&key.key)).cloned();
        return match (map, value) {
            (_, Some(value)) => Ok(Some(value)),
            _ if key.optional == Some(true) => Ok(None),
            (None, _) => Err(format!("configmap {:?} not found", key.name)),
            (Some(_), None) => Err(format!("couldn't find key {} in ConfigMap {}", key.key, key.name)),
        };
    }
    if let Some(key) = &source.secret_key_ref {
        let secret = found.secrets.get(&key.name);
        let value = secret.and_then(|secret| secret.data.as_ref()).and_then(|data| data.get(&key.key));
        return match (secret, value) {
            (_, Some(value)) => text(&value.0, &key.key).map(Some),
            _ if key.optional == Some(true) => Ok(None),
            (None, _) => Err(format!("secret {:?} not found", key.name)),
            (Some(_), None) => Err(format!("couldn't find key {} in Secret {}", key.key, key.name)),
        };
    }
    Err(format!("environment variable {:?} has a source of an unsupported kind", var.name))
}

/// A secret as a variable; its bytes never reach an error.
fn text(bytes: &[u8], key: &str) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| format!("the value of key {key:?} is not UTF-8 text"))
}

/// The host name of a Pod: `spec.hostnameOverride`, `spec.hostname`, else its name, shortened to what the kernel takes.
pub(crate) fn hostname(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let names =
        [spec.and_then(|spec| spec.hostname_override.clone()), spec.and_then(|spec| spec.hostname.clone())];
    let named = names.into_iter().flatten().find(|name| !name.is_empty());
    let name = named.or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    let short: String = name.chars().take(63).collect();
    short.trim_end_matches(['-', '.']).to_owned()
}

/// Returns the value of the downward API for a field of the Pod.
pub(crate) fn field_value(path: &str, facts: &Facts<'_>) -> Result<String, String> {
    let metadata = &facts.pod.metadata;
    let spec = facts.pod.spec.as_ref();
    let value = match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "spec.nodeName" => Some(facts.node_name.to_owned()),
        "spec.serviceAccountName" => {
            Some(spec.and_then(|s| s.service_account_name.clone()).unwrap_or_else(|| "default".into()))
        }
        "status.podIP" | "status.podIPs" => Some(facts.pod_ip.to_owned()),
        "status.hostIP" | "status.hostIPs" => Some(facts.host_ip.to_owned()),
        "metadata.labels" => Some(listed(metadata.labels.as_ref())),
        "metadata.annotations" => Some(listed(metadata.annotations.as_ref())),
        _ => {
            let entry = |prefix: &str, map: Option<&BTreeMap<String, String>>| {
                let key = path.strip_prefix(prefix)?.strip_suffix("']")?;
                Some(map.and_then(|map| map.get(key)).cloned().unwrap_or_default())
            };
            entry("metadata.labels['", metadata.labels.as_ref())
                .or_else(|| entry("metadata.annotations['", metadata.annotations.as_ref()))
        }
    };
    value.ok_or_else(|| format!("the Pod has no field {path:?} to refer to"))
}

fn listed(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map.into_iter().flatten().map(|(k, v)| format!("{k}={v:?}")).collect();
    lines.join("\n")
}

/// Returns the value of the downward API for a limit or request of a container. A limit that is not set is what the node
/// has.
pub(crate) fn resource_value(
    field: &ResourceFieldSelector,
    container: &Container,
    facts: &Facts<'_>,
) -> Result<String, String> {
    let name = field.resource.as_str();
    let limits = limits::of(container, &facts.defaults)?;
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let requested = |name: &str| requests.and_then(|requests| requests.get(name));
    let disk_limit = container.resources.as_ref().and_then(|r| r.limits.as_ref()?.get("ephemeral-storage"));
    let (value, unit) = match name {
        "limits.cpu" => (limits.cpu_millis.unwrap_or(facts.allocatable.cpu_millis), 1000),
        "limits.memory" => (limits.memory_bytes.unwrap_or(facts.allocatable.memory_bytes), 1),
        "limits.ephemeral-storage" => {
            (disk_limit.and_then(quantity::units).unwrap_or(facts.allocatable.disk_bytes), 1)
        }
        "requests.ephemeral-storage" => {
            (requested("ephemeral-storage").and_then(quantity::units).unwrap_or(0), 1)
        }
        "requests.cpu" => (requested("cpu").and_then(quantity::millis).unwrap_or(0), 1000),
        "requests.memory" => (requested("memory").and_then(quantity::units).unwrap_or(0), 1),
        _ => return Err(format!("{name:?} is no resource to refer to")),
    };
    let divisor = field.divisor.as_ref().and_then(|divisor| match unit {
        1 => quantity::units(divisor),
        _ => quantity::millis(divisor),
    });
    Ok(value.div_ceil(divisor.filter(|divisor| *divisor > 0).unwrap_or(unit)).to_string())
}

/// Replaces `$(NAME)`; `$$(NAME)` is the text `$(NAME)`, and what is not known stays as it is.
pub(crate) fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            out.push('$');
            rest = escaped;
            continue;
        }
        let name = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match name {
            Some((name, tail)) => {
                out.push_str(&value(name).unwrap_or_else(|| format!("$({name})")));
                rest = tail;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The command line: `command` takes the place of the image's entry point, `args` that of its arguments.
pub(crate) fn command_line(
    image: &hutch_image::ImageConfig,
    container: &Container,
    environment: &[(String, String)],
) -> Result<Vec<String>, String> {
    let value = |name: &str| environment.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let expanded = |list: &Vec<String>| list.iter().map(|text| expand(text, value)).collect::<Vec<_>>();
    let command = container.command.as_ref().filter(|c| !c.is_empty()).map(expanded);
    let args = container.args.as_ref().filter(|a| !a.is_empty()).map(expanded);
    let line = match (command, args) {
        (Some(command), args) => [command, args.unwrap_or_default()].concat(),
        (None, Some(args)) => [image.entrypoint.clone(), args].concat(),
        (None, None) => [image.entrypoint.clone(), image.cmd.clone()].concat(),
    };
    match line.first().is_some_and(|program| !program.is_empty()) {
        true => Ok(line),
        false => Err("neither the container nor its image names a command".into()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMapKeySelector, EnvVarSource, ObjectFieldSelector};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

    #[test]
    fn variables_are_expanded_as_in_kubernetes() {
        let value = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected) in [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$", "$"),
        ] {
            assert_eq!(expand(text, value), expected, "{text}");
        }
    }

    fn variable(name: &str, value: &str) -> EnvVar {
        EnvVar { name: name.into(), value: Some(value.into()), ..EnvVar::default() }
    }

    #[test]
    fn sources_are_looked_up_and_missing_ones_are_named() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.labels = Some(BTreeMap::from([("app".into(), "x".into())]));
        let facts = Facts {
            pod: &pod,
            pod_ip: "10.89.0.1",
            host_ip: "127.0.0.1",
            node_name: "hutch",
            defaults: DefaultLimits::default(),
            allocatable: Amount { cpu_millis: 2000, memory_bytes: 4 << 30, ..Amount::default() },
        };
        let from =
            |source: EnvVarSource| EnvVar { name: "F".into(), value_from: Some(source), ..EnvVar::default() };
        let field = |path: &str| {
            from(EnvVarSource {
                field_ref: Some(ObjectFieldSelector { field_path: path.into(), api_version: None }),
                ..EnvVarSource::default()
            })
        };
        let key = |optional| {
            from(EnvVarSource {
                config_map_key_ref: Some(ConfigMapKeySelector {
                    name: "m".into(),
                    key: "k".into(),
                    optional,
                }),
                ..EnvVarSource::default()
            })
        };
        let resolve = |var: EnvVar| {
            let container = Container {
                env: Some(vec![variable("A", "1"), variable("B", "$(A)2"), var]),
                ..Container::default()
            };
            environment(&[], &container, &facts, &References::default())
                .map(|all| all.into_iter().collect::<BTreeMap<_, _>>())
        };
        let all = resolve(field("metadata.labels['app']")).unwrap();
        assert_eq!((all["B"].as_str(), all["F"].as_str(), all["HOSTNAME"].as_str()), ("12", "x", "p"));
        assert_eq!(resolve(field("status.podIP")).unwrap()["F"], "10.89.0.1");
        assert!(resolve(field("status.nothing")).unwrap_err().contains("status.nothing"));
        assert!(resolve(key(None)).unwrap_err().contains("\"m\" not found"));
        assert!(!resolve(key(Some(true))).unwrap().contains_key("F"));
    }

    #[test]
    fn limit_that_is_not_set_is_what_the_node_has() {
        let pod = Pod::default();
        let facts = Facts {
            pod: &pod,
            pod_ip: "10.89.0.1",
            host_ip: "127.0.0.1",
            node_name: "hutch",
            defaults: DefaultLimits { memory_bytes: None, ..DefaultLimits::default() },
            allocatable: Amount {
                cpu_millis: 2000,
                memory_bytes: 4 << 30,
                disk_bytes: 8 << 20,
                ..Amount::default()
            },
        };
        let value = |resource: &str, divisor: Option<&str>| {
            let divisor = divisor.map(|text| Quantity(text.into()));
            let field = ResourceFieldSelector { resource: resource.into(), divisor, container_name: None };
            resource_value(&field, &Container::default(), &facts).unwrap()
        };
        assert_eq!(value("limits.cpu", None), "2");
        assert_eq!(value("limits.cpu", Some("1m")), "2000");
        assert_eq!(value("limits.memory", None), (4_u64 << 30).to_string());
        assert_eq!(value("limits.memory", Some("1Gi")), "4");
        assert_eq!(value("requests.cpu", Some("0")), "0");
        assert_eq!(value("limits.ephemeral-storage", Some("1Mi")), "8");
        assert_eq!(value("requests.ephemeral-storage", None), "0");
    }

    #[test]
    fn command_and_args_follow_the_image() {
        let image = hutch_image::ImageConfig {
            entrypoint: vec!["/entry".into()],
            cmd: vec!["cmd".into()],
            ..hutch_image::ImageConfig::default()
        };
        let line = |command: &[&str], args: &[&str]| {
            let list = |l: &[&str]| Some(l.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
            let container = Container { command: list(command), args: list(args), ..Container::default() };
            command_line(&image, &container, &[("A".into(), "1".into())]).map(|l| l.join(" "))
        };
        assert_eq!(line(&[], &[]).unwrap(), "/entry cmd");
        assert_eq!(line(&[], &["$(A)"]).unwrap(), "/entry 1");
        assert_eq!(line(&["c"], &[]).unwrap(), "c");
        assert_eq!(line(&["c"], &["a"]).unwrap(), "c a");
        let none = command_line(&hutch_image::ImageConfig::default(), &Container::default(), &[]);
        assert!(none.is_err());
    }
}
