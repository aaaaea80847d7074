//! Which Pods the node runs at all, and in what.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use hutch_api::state::RESTORE_FAILED;
use hutch_image::{PathSegment, StopSignal};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, PodSpec, Probe, Volume};

use crate::config::{Handler, ServiceKind};
use crate::container::message;
use crate::{embedded, security};

/// Handler that runs a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// A jail of this kind.
    Jail(Handler),
    /// Nothing: the service runs in this process.
    Embedded(ServiceKind),
}

/// Separation of the processes of a Pod from the machine, as its condition reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Isolation {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Choice {
    /// Returns the isolation of a Pod of this RuntimeClass.
    pub(crate) fn isolation(self, class: Option<&str>) -> Isolation {
        let (reason, mut message) = match self {
            Choice::Jail(Handler::Native) => ("Native", "handler hutch, level native: a jail".to_owned()),
            Choice::Jail(Handler::Gvisor) => {
                ("Gvisor", "handler gvisor, level gvisor: runsc within a jail".to_owned())
            }
            Choice::Embedded(kind) => {
                let name = kind.name();
                ("Embedded", format!("level embedded: no process; hutch itself serves the {name}"))
            }
        };
        if let (Choice::Jail(handler), Some(named)) = (self, class.and_then(Handler::parse))
            && named != handler
        {
            let (named, handler) = (named.name(), handler.name());
            message.push_str(&format!(". --runtime-class maps the class {named} to the handler {handler}"));
        }
        Isolation { reason, message }
    }
}

/// Reason of the event about a Pod that gets no sandbox.
pub(crate) const NO_SANDBOX: &str = "FailedCreatePodSandBox";
/// Reason of a Pod whose RuntimeClass this node cannot run, by the name that a kubelet has for the error.
pub(crate) const NO_HANDLER: &str = "CreatePodSandboxError";

/// Reason why a Pod cannot run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    /// Returns the reason of the event.
    pub(crate) fn event(&self) -> &'static str {
        if self.reason == NO_HANDLER { NO_SANDBOX } else { self.reason }
    }

    /// Returns the reason for which the containers wait. `ContainerCreating` stands for all that may pass by itself.
    pub(crate) fn of_containers(&self) -> &'static str {
        match self.reason {
            "FailedValidation" => "CreateContainerConfigError",
            NO_HANDLER | RESTORE_FAILED => self.reason,
            _ => "ContainerCreating",
        }
    }
}

/// Chooses the handler of a Pod. `runsc` reports whether gVisor is installed.
pub(crate) fn choose(
    spec: &PodSpec,
    classes: &BTreeMap<String, Handler>,
    runsc: impl FnOnce() -> Result<(), String>,
) -> Result<Choice, Refusal> {
    if let Some(kind) = embedded::service_of(spec) {
        return Ok(Choice::Embedded(kind));
    }
    let no_handler = |message: String| Refusal {
        reason: NO_HANDLER,
        message: format!("Failed to create pod sandbox: {message}"),
    };
    let Some(class) = spec.runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(Choice::Jail(Handler::Native));
    };
    match classes.get(class) {
        Some(Handler::Native) => Ok(Choice::Jail(Handler::Native)),
        Some(Handler::Gvisor) => match runsc() {
            Ok(()) => Ok(Choice::Jail(Handler::Gvisor)),
            Err(problem) => Err(no_handler(format!(
                "runtimeClassName {class:?} needs gVisor: {problem}. Install runsc from \
                 https://gvisor.dev/docs/user_guide/install/ (the package of Debian 12 is too old), or start hutch with \
                 --runtime-class {class}=hutch to run these Pods in the native jail instead"
            ))),
        },
        None => {
            let known: Vec<&str> = classes.keys().map(String::as_str).collect();
            Err(no_handler(format!(
                "no handler for runtimeClassName {class:?}: this node has {}. \
                 Start hutch with --runtime-class {class}=hutch to run these Pods in the native jail",
                known.join(", ")
            )))
        }
    }
}

/// Refuses fields of a Pod that the node cannot or will not provide. No field is ignored silently.
pub(crate) fn check(spec: &PodSpec) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal { reason: "FailedValidation", message });
    for (set, what) in
        [(spec.host_network, "hostNetwork"), (spec.host_pid, "hostPID"), (spec.host_ipc, "hostIPC")]
    {
        if set == Some(true) {
            return refuse(format!("{what} is not supported: a sandbox shares nothing with the machine"));
        }
    }
    if spec.host_users == Some(true) {
        return refuse("hostUsers is not supported: ids inside are never ids of the machine".into());
    }
    if let Some(os) = spec.os.as_ref().filter(|os| os.name != "linux") {
        return refuse(format!("os.name: {:?} is not supported: Pods run on Linux", os.name));
    }
    if let Some(of_pod) = &spec.security_context {
        security::check_pod(of_pod).or_else(refuse)?;
    }
    check_names(spec)?;
    for volume in spec.volumes.iter().flatten() {
        check_volume(volume)?;
    }
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers.try_for_each(|container| check_in(spec, container))
}

/// Checks an ephemeral container of a Pod that was accepted, as [`check`] does with others.
pub(crate) fn check_ephemeral(spec: &PodSpec, container: &Container) -> Result<(), Refusal> {
    check_names(&PodSpec { containers: vec![container.clone()], ..PodSpec::default() })?;
    check_in(spec, container)
}

/// Checks a container and that the Pod has the volumes that it mounts.
fn check_in(spec: &PodSpec, container: &Container) -> Result<(), Refusal> {
    check_container(container)?;
    let known = |name: &str| spec.volumes.iter().flatten().any(|volume| volume.name == name);
    match container.volume_mounts.iter().flatten().find(|mount| !known(&mount.name)) {
        Some(mount) => {
            let message =
                format!("container {:?} mounts {:?}, which is no volume", container.name, mount.name);
            Err(Refusal { reason: "FailedValidation", message })
        }
        None => Ok(()),
    }
}

/// Names become folders. The API server refuses these too, but an older version may have stored the Pod.
fn check_names(spec: &PodSpec) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal { reason: "FailedValidation", message });
    let containers = spec.containers.iter().map(|c| ("spec.containers", &c.name));
    let init = spec.init_containers.iter().flatten().map(|c| ("spec.initContainers", &c.name));
    let volumes = spec.volumes.iter().flatten().map(|v| ("spec.volumes", &v.name));
    let mut seen = BTreeSet::new();
    for (field, name) in containers.chain(init).chain(volumes) {
        if PathSegment::label(name).is_none() {
            return refuse(format!(
                "{field}.name: {name:?} is invalid: a lowercase RFC 1123 label consists of at most 63 lower case \
                 alphanumeric characters or '-', and starts and ends with an alphanumeric character"
            ));
        }
        if !seen.insert((field == "spec.volumes", name)) {
            return refuse(format!("{field}.name: {name:?} is a duplicate: each name may be used once"));
        }
    }
    Ok(())
}

/// Folders of the kernel, which a volume must not hide: programs inside rely on them.
fn check_mount_path(field: &str, path: &str) -> Result<(), String> {
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(format!("{field} {path:?} is not an absolute path without .."));
    }
    let path: PathBuf = Path::new(path).components().collect();
    if path == Path::new("/") {
        return Err(format!("{field} cannot be mounted at /: name a path below it"));
    }
    for kernel in ["/proc", "/sys", "/dev"] {
        if path.starts_with(kernel) && !path.starts_with("/dev/shm") {
            return Err(format!(
                "{field} {path:?} is at or below {kernel}: of these only /dev/shm can be used"
            ));
        }
    }
    Ok(())
}

fn check_container(container: &Container) -> Result<(), Refusal> {
    let name = &container.name;
    let refuse = |message: String| {
        Err(Refusal { reason: "FailedValidation", message: format!("container {name:?}: {message}") })
    };
    if let Some(own) = &container.security_context {
        security::check_container(own).or_else(&refuse)?;
    }
    if container.volume_devices.as_ref().is_some_and(|list| !list.is_empty()) {
        return refuse("block devices are not supported".into());
    }
    for mount in container.volume_mounts.iter().flatten() {
        check_mount_path("mountPath", &mount.mount_path).or_else(&refuse)?;
        if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") {
            return refuse(format!("mountPropagation of {:?} is not supported", mount.name));
        }
        if mount.sub_path_expr.is_some() && mount.sub_path.is_some() {
            return refuse(format!("{:?} has both subPath and subPathExpr", mount.name));
        }
    }
    let path = container.termination_message_path.as_deref().unwrap_or_default();
    if !path.is_empty() && Path::new(path) != Path::new(message::USUAL_PATH) {
        check_mount_path("terminationMessagePath", path).or_else(&refuse)?;
    }
    let probes = [&container.readiness_probe, &container.liveness_probe, &container.startup_probe];
    for probe in probes.into_iter().flatten() {
        check_probe(probe).or_else(|message| refuse(message.into()))?;
    }
    let handlers = container.lifecycle.iter().flat_map(|l| [&l.pre_stop, &l.post_start]).flatten();
    for handler in handlers {
        if handler.tcp_socket.is_some() {
            return refuse("lifecycle tcpSocket is not supported".into());
        }
        if handler.http_get.as_ref().is_some_and(is_https) {
            return refuse("lifecycle httpGet with scheme HTTPS is not supported: use HTTP or exec".into());
        }
    }
    let signal = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    if let Some(signal) = signal.filter(|signal| StopSignal::parse(signal).is_none()) {
        return refuse(format!("lifecycle stopSignal {signal:?} is no signal of Linux, such as SIGTERM"));
    }
    Ok(())
}

fn is_https(get: &HTTPGetAction) -> bool {
    get.scheme.as_deref() == Some("HTTPS")
}

fn check_probe(probe: &Probe) -> Result<(), &'static str> {
    if probe.grpc.is_some() {
        return Err("grpc probes are not supported: use httpGet, tcpSocket or exec");
    }
    if probe.http_get.as_ref().is_some_and(is_https) {
        return Err("httpGet probes with scheme HTTPS are not supported: use HTTP, tcpSocket or exec");
    }
    let kinds = [probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.exec.is_some()];
    match kinds.iter().filter(|set| **set).count() {
        1 => Ok(()),
        _ => Err("a probe needs exactly one of httpGet, tcpSocket and exec"),
    }
}

fn check_volume(volume: &Volume) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal { reason: "FailedMount", message });
    let name = &volume.name;
    let supported = volume.empty_dir.is_some()
        || volume.host_path.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
        || volume.persistent_volume_claim.is_some();
    if supported {
        return Ok(());
    }
    // The kind is the one key beside the name; naming each of the some thirty kinds by hand would go stale.
    let value = serde_json::to_value(volume).unwrap_or_default();
    let kind = value.as_object().and_then(|map| map.keys().find(|key| *key != "name")).cloned();
    match kind {
        Some(kind) => refuse(format!("volume {name:?}: kind {kind} is not supported")),
        None => refuse(format!("volume {name:?} names no kind")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(change: Value) -> PodSpec {
        let mut spec = json!({"containers": [{"name": "c", "image": "hutch/host"}]});
        for (key, value) in change.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn what_cannot_be_given_is_refused_by_name() {
        let container = |field: Value| {
            let mut c = json!({"name": "c", "image": "hutch/host"});
            for (key, value) in field.as_object().unwrap() {
                c[key] = value.clone();
            }
            json!({ "containers": [c] })
        };
        let mounted = |path: &str| {
            let mut change = container(json!({"volumeMounts": [{"name": "v", "mountPath": path}]}));
            change["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
            change
        };
        for (change, word) in [
            (json!({"hostNetwork": true}), "hostNetwork"),
            (json!({"hostPID": true}), "hostPID"),
            (json!({"hostUsers": true}), "hostUsers"),
            (json!({"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}), "nfs"),
            (container(json!({"securityContext": {"privileged": true}})), "privileged"),
            (container(json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}})), "SYS_ADMIN"),
            (json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}), "seccompProfile"),
            (container(json!({"volumeMounts": [{"name": "v", "mountPath": "/x"}]})), "\"v\""),
            (container(json!({"readinessProbe": {"grpc": {"port": 1}}})), "grpc"),
            (container(json!({"readinessProbe": {}})), "exactly one"),
            (container(json!({"terminationMessagePath": "message"})), "absolute path"),
            (container(json!({"terminationMessagePath": "/a/../message"})), "absolute path"),
            (container(json!({"terminationMessagePath": "/proc/self/environ"})), "/proc"),
            (container(json!({"terminationMessagePath": "/dev/message"})), "/dev/shm"),
            (container(json!({"terminationMessagePath": "/"})), "cannot be mounted at /"),
            (
                container(json!({"lifecycle": {"preStop": {"httpGet": {"port": 1, "scheme": "HTTPS"}}}})),
                "lifecycle httpGet with scheme HTTPS",
            ),
            (container(json!({"lifecycle": {"stopSignal": "SIGNOTHING"}})), "stopSignal \"SIGNOTHING\""),
            (container(json!({"name": "/etc"})), "RFC 1123"),
            (container(json!({"name": ".."})), "RFC 1123"),
            (json!({"volumes": [{"name": "/", "emptyDir": {}}]}), "RFC 1123"),
            (json!({"initContainers": [{"name": "c"}]}), "duplicate"),
            (
                json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "configMap": {}}]}),
                "duplicate",
            ),
            (mounted("/"), "cannot be mounted"),
            (mounted("/proc/sys"), "/proc"),
            (mounted("/./sys//"), "/sys"),
            (mounted("/dev"), "/dev/shm"),
        ] {
            let refusal = check(&spec(change.clone())).unwrap_err();
            assert!(refusal.message.contains(word), "{change}: {}", refusal.message);
        }
        let usual = json!({"hostNetwork": false, "volumes": [{"name": "v", "emptyDir": {}}]});
        assert_eq!(check(&spec(usual)), Ok(()));
        for path in ["/dev/termination-log", "/dev/shm/message", "/tmp/message", ""] {
            let usual = container(json!({"terminationMessagePath": path}));
            assert_eq!(check(&spec(usual)), Ok(()), "{path}");
        }
        for path in ["/dev/shm", "/dev/shm/x", "/development", "/process", "/srv"] {
            assert_eq!(check(&spec(mounted(path))), Ok(()), "{path}");
        }
    }

    #[test]
    fn ephemeral_container_is_checked_as_others() {
        let of =
            |container: Value| check_ephemeral(&spec(json!({})), &serde_json::from_value(container).unwrap());
        assert_eq!(
            of(json!({"name": "e", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}})),
            Ok(())
        );
        for (container, word) in [
            (json!({"name": ".."}), "RFC 1123"),
            (json!({"name": "e", "securityContext": {"privileged": true}}), "privileged"),
            (json!({"name": "e", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}), "\"v\""),
        ] {
            let refusal = of(container.clone()).unwrap_err();
            assert!(refusal.message.contains(word), "{container}: {}", refusal.message);
        }
    }

    #[test]
    fn classes_choose_the_handler_and_never_silently() {
        let classes = Handler::defaults();
        let class = |name: &str| spec(json!({ "runtimeClassName": name }));
        let native = Ok(Choice::Jail(Handler::Native));
        let none = || Err("too old".to_owned());
        assert_eq!(choose(&spec(json!({})), &classes, none), native);
        assert_eq!(choose(&class("hutch"), &classes, none), native);
        assert_eq!(choose(&class("gvisor"), &classes, || Ok(())), Ok(Choice::Jail(Handler::Gvisor)));
        let missing = choose(&class("gvisor"), &classes, none).unwrap_err();
        assert!(missing.message.contains("needs gVisor: too old"), "{}", missing.message);
        assert!(missing.message.contains("--runtime-class gvisor=hutch"), "{}", missing.message);
        let unknown = choose(&class("kata"), &classes, || Ok(())).unwrap_err();
        assert!(unknown.message.contains("--runtime-class kata=hutch"), "{}", unknown.message);
        for refusal in [missing, unknown] {
            assert_eq!((refusal.event(), refusal.of_containers()), (NO_SANDBOX, NO_HANDLER));
        }
        let mapped = BTreeMap::from([("gvisor".to_owned(), Handler::Native)]);
        assert_eq!(choose(&class("gvisor"), &mapped, none), native);
    }

    #[test]
    fn a_pod_of_a_service_image_holds_no_process() {
        let router = "us-central1-docker.pkg.dev/k8s-staging-images/agent-sandbox/sandbox-router:v1";
        let one = spec(json!({"containers": [{"name": "r", "image": router}]}));
        assert_eq!(
            choose(&one, &Handler::defaults(), || Err(String::new())),
            Ok(Choice::Embedded(ServiceKind::Router))
        );
        let isolation = Choice::Embedded(ServiceKind::Router).isolation(None);
        assert_eq!(isolation.reason, "Embedded");
        assert_eq!(isolation.message, "level embedded: no process; hutch itself serves the router");
        let mixed = spec(
            json!({"containers": [{"name": "r", "image": router}, {"name": "s", "image": "hutch/host"}]}),
        );
        assert_eq!(
            choose(&mixed, &Handler::defaults(), || Err(String::new())),
            Ok(Choice::Jail(Handler::Native))
        );
    }
}
