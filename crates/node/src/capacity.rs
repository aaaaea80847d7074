//! Resources that Pods may request from the node, and those that its Pods and volumes in memory have.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hutch_api::quantity;
use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Most Pods at once: each has an id range and some processes, and the kernel has 32768 of those by default.
const MAX_PODS: u64 = 5000;

/// Resources of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// In thousandths of a CPU.
    pub(crate) cpu_millis: u64,
    pub(crate) memory_bytes: u64,
    /// `ephemeral-storage`.
    pub(crate) disk_bytes: u64,
    pub(crate) pods: u64,
}

impl Amount {
    /// All of this machine, whose memory is in the file, and of the file system of this folder.
    pub(crate) fn of_machine(meminfo: &Path, data: &Path) -> Amount {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Amount {
            cpu_millis: u64::try_from(cpus).unwrap_or(1).saturating_mul(1000),
            memory_bytes: memory_field(meminfo, "MemTotal:").unwrap_or(0),
            disk_bytes: rustix::fs::statvfs(data)
                .map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
            pods: MAX_PODS,
        }
    }

    /// Returns both amounts, each resource by this function.
    fn with(self, other: Amount, both: fn(u64, u64) -> u64) -> Amount {
        Amount {
            cpu_millis: both(self.cpu_millis, other.cpu_millis),
            memory_bytes: both(self.memory_bytes, other.memory_bytes),
            disk_bytes: both(self.disk_bytes, other.disk_bytes),
            pods: both(self.pods, other.pods),
        }
    }

    fn plus(self, other: Amount) -> Amount {
        self.with(other, u64::saturating_add)
    }

    fn max(self, other: Amount) -> Amount {
        self.with(other, u64::max)
    }

    fn requested(resources: Option<&ResourceRequirements>) -> Amount {
        let requests = resources.and_then(|resources| resources.requests.as_ref());
        // What is out of range fits nowhere.
        let named = |name: &str, read: fn(&Quantity) -> Option<u64>| {
            let requested = requests.and_then(|requests| requests.get(name));
            requested.map_or(0, |quantity| read(quantity).unwrap_or(u64::MAX))
        };
        Amount {
            cpu_millis: named("cpu", quantity::millis),
            memory_bytes: named("memory", quantity::units),
            disk_bytes: named("ephemeral-storage", quantity::units),
            pods: 0,
        }
    }

    /// Returns what a scheduler says is lacking when a node with these resources shall hold `all`, of which `own` is new.
    fn lacks(self, own: Amount, all: Amount) -> Vec<&'static str> {
        let each = [
            (own.cpu_millis, all.cpu_millis, self.cpu_millis, "1 Insufficient cpu"),
            (own.disk_bytes, all.disk_bytes, self.disk_bytes, "1 Insufficient ephemeral-storage"),
            (own.memory_bytes, all.memory_bytes, self.memory_bytes, "1 Insufficient memory"),
            (own.pods, all.pods, self.pods, "1 Too many pods"),
        ];
        let lacking = each.into_iter().filter(|(own, all, total, _)| *own > 0 && all > total);
        lacking.map(|(.., message)| message).collect()
    }
}

/// Returns a field of a file such as `/proc/meminfo` in bytes.
fn memory_field(meminfo: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(meminfo).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Memory is short as soon as fewer bytes are available, as a kubelet has it.
pub(crate) const LEAST_MEMORY_BYTES: u64 = 100 << 20;
/// Memory is short until so many bytes are available.
const ENOUGH_MEMORY_BYTES: u64 = 200 << 20;

/// Available memory of the machine.
pub(crate) struct MemoryGauge {
    meminfo: PathBuf,
    short: AtomicBool,
}

/// One measurement of the available memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryReading {
    /// In bytes; 0 if it cannot be read.
    pub(crate) available: u64,
    /// Too little is available.
    pub(crate) is_short: bool,
    /// The measurement before had another result.
    pub(crate) has_changed: bool,
}

impl MemoryGauge {
    pub(crate) fn new(meminfo: PathBuf) -> MemoryGauge {
        MemoryGauge { meminfo, short: AtomicBool::new(false) }
    }

    /// Measures it. A figure that cannot be read is no shortage.
    pub(crate) fn read(&self) -> MemoryReading {
        let available = memory_field(&self.meminfo, "MemAvailable:");
        let was_short = self.short.load(Ordering::Relaxed);
        let is_short = available.is_some_and(|bytes| is_short(was_short, bytes));
        let has_changed = self.short.swap(is_short, Ordering::Relaxed) != is_short;
        MemoryReading { available: available.unwrap_or(0), is_short, has_changed }
    }
}

/// Returns true if memory is short. A shortage ends later than it begins, so that it does not come and go.
fn is_short(was_short: bool, available: u64) -> bool {
    available < if was_short { ENOUGH_MEMORY_BYTES } else { LEAST_MEMORY_BYTES }
}

/// Returns the requests of a Pod, as a scheduler counts them: an init container runs beside the sidecars before it, the
/// other containers run beside all sidecars.
pub(crate) fn requests(spec: &PodSpec) -> Amount {
    let (mut sidecars, mut most) = (Amount::default(), Amount::default());
    for container in spec.init_containers.iter().flatten() {
        let own = Amount::requested(container.resources.as_ref());
        most = most.max(sidecars.plus(own));
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars.plus(own);
        }
    }
    let main = spec.containers.iter().map(|container| Amount::requested(container.resources.as_ref()));
    let most = most.max(main.fold(sidecars, Amount::plus)).max(Amount::requested(spec.resources.as_ref()));
    Amount { pods: 1, ..most }
}

/// Checks that the node has each resource that a Pod requests: it has no `nvidia.com/gpu` and no `hugepages-2Mi`. The error
/// is the message of a scheduler.
pub(crate) fn check_kinds(spec: &PodSpec) -> Result<(), String> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let resources: Vec<&ResourceRequirements> = containers
        .map(|container| container.resources.as_ref())
        .chain([spec.resources.as_ref()])
        .flatten()
        .collect();
    let named =
        resources.iter().flat_map(|resources| [&resources.requests, &resources.limits]).flatten().flatten();
    let absent: BTreeSet<&str> = named
        .filter(|(name, quantity)| {
            !matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
                && quantity::units(quantity) != Some(0)
        })
        .map(|(name, _)| name.as_str())
        .collect();
    if !absent.is_empty() {
        let each: Vec<String> = absent.into_iter().map(|name| format!("1 Insufficient {name}")).collect();
        return Err(unschedulable(&each.join(", ")));
    }
    let claims = |resources: &&ResourceRequirements| {
        resources.claims.as_ref().is_some_and(|claims| !claims.is_empty())
    };
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) || resources.iter().any(claims)
    {
        return Err(unschedulable("1 cannot allocate all claims"));
    }
    Ok(())
}

/// Returns the message of a scheduler that finds no node.
pub(crate) fn unschedulable(why: &str) -> String {
    format!("0/1 nodes are available: {why}.")
}

/// Resources of the node, and the requests of its Pods.
pub(crate) struct Capacity {
    total: Amount,
    taken: Mutex<HashMap<String, Amount>>,
    /// True while no new Pods may start.
    cordoned: AtomicBool,
    freed: Notify,
}

impl Capacity {
    pub(crate) fn new(total: Amount) -> Capacity {
        Capacity { total, taken: Mutex::default(), cordoned: AtomicBool::new(false), freed: Notify::new() }
    }

    /// A panic while the lock was held leaves whole values, so the lock stays usable.
    fn taken(&self) -> MutexGuard<'_, HashMap<String, Amount>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn total(&self) -> Amount {
        self.total
    }

    /// Takes the requests of a Pod or a volume. The error is the message of a scheduler. One that was here before gets them in
    /// any case.
    pub(crate) fn take(&self, uid: &str, amount: Amount, ran_before: bool) -> Result<(), String> {
        let mut taken = self.taken();
        let others = taken.iter().filter(|(other, _)| *other != uid);
        let all = others.fold(amount, |sum, (_, other)| sum.plus(*other));
        let lacks = self.total.lacks(amount, all);
        if !lacks.is_empty() && !ran_before {
            return Err(unschedulable(&lacks.join(", ")));
        }
        taken.insert(uid.to_owned(), amount);
        Ok(())
    }

    /// Gives back the requests of a Pod or a volume.
    pub(crate) fn release(&self, uid: &str) {
        let released = self.taken().remove(uid);
        if released.is_some_and(|amount| amount != Amount::default()) {
            self.freed.notify_waiters();
        }
    }

    /// Gives back what was taken for an attempt that failed. Wakes no waiting task: it had no room before either.
    pub(crate) fn take_back(&self, uid: &str) {
        self.taken().remove(uid);
    }

    /// Returns true while no new Pods may start.
    pub(crate) fn is_cordoned(&self) -> bool {
        self.cordoned.load(Ordering::Relaxed)
    }

    /// Keeps new Pods away, or lets those start that wait.
    pub(crate) fn set_cordoned(&self, cordoned: bool) {
        if self.cordoned.swap(cordoned, Ordering::Relaxed) && !cordoned {
            self.freed.notify_waiters();
        }
    }

    /// Resolves when a Pod gives back its requests, or new ones may start again, after this call.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(init: Value, main: Value) -> PodSpec {
        serde_json::from_value(json!({"initContainers": init, "containers": main})).unwrap()
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[test]
    fn memory_shortage_ends_later_than_it_begins() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let gauge = MemoryGauge::new(file.path().to_owned());
        let read = |mebibytes: u64| {
            std::fs::write(&file, format!("MemTotal: 9 kB\nMemAvailable:  {} kB\n", mebibytes << 10))
                .unwrap();
            let reading = gauge.read();
            assert_eq!(reading.available, mebibytes << 20);
            (reading.is_short, reading.has_changed)
        };
        assert_eq!(read(100), (false, false));
        assert_eq!(read(99), (true, true));
        assert_eq!(read(199), (true, false));
        assert_eq!(read(200), (false, true));
        assert_eq!(read(199), (false, false));
        assert_eq!(read(0), (true, true));
        std::fs::write(&file, "").unwrap();
        assert!(!gauge.read().is_short, "an unknown figure is no shortage");
    }

    #[test]
    fn requests_are_those_of_the_containers_that_run_at_once() {
        let mut sidecar = container("100m", "1Mi");
        sidecar["restartPolicy"] = "Always".into();
        let both =
            spec(json!([sidecar, container("3", "1Mi")]), json!([container("500m", "2Mi"), {"name": "d"}]));
        let wanted = Amount { cpu_millis: 3100, memory_bytes: 3 << 20, disk_bytes: 0, pods: 1 };
        assert_eq!(requests(&both), wanted);
    }

    #[test]
    fn resource_that_the_node_does_not_have_keeps_a_pod_away() {
        let with = |requests: Value| {
            check_kinds(&spec(json!([{"name": "i", "resources": {"requests": requests}}]), json!([])))
        };
        assert_eq!(with(json!({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"})), Ok(()));
        assert_eq!(with(json!({"nvidia.com/gpu": "0"})), Ok(()), "none of it is always there");
        let limited: PodSpec = serde_json::from_value(
            json!({"containers": [{"name": "c", "resources": {"limits": {"a.b/c": "1"}, "requests": {"a.b/c": "0"}}}]}),
        )
        .unwrap();
        assert_eq!(check_kinds(&limited).unwrap_err(), "0/1 nodes are available: 1 Insufficient a.b/c.");
        let refused = with(json!({"nvidia.com/gpu": "1", "hugepages-2Mi": "4Mi"})).unwrap_err();
        assert_eq!(
            refused,
            "0/1 nodes are available: 1 Insufficient hugepages-2Mi, 1 Insufficient nvidia.com/gpu."
        );
        let claims: PodSpec =
            serde_json::from_value(json!({"containers": [], "resourceClaims": [{"name": "gpu"}]})).unwrap();
        assert_eq!(
            check_kinds(&claims).unwrap_err(),
            "0/1 nodes are available: 1 cannot allocate all claims."
        );
    }

    #[test]
    fn request_that_is_out_of_range_fits_nowhere() {
        let negative = requests(&spec(json!([]), json!([container("-5", "1Mi")])));
        assert!(
            Capacity::new(Amount { cpu_millis: 2000, memory_bytes: 1 << 30, disk_bytes: 0, pods: 1 })
                .take("a", negative, false)
                .is_err()
        );
    }

    #[test]
    fn pod_that_does_not_fit_waits_for_room() {
        let amount = |cpu_millis, memory_bytes| Amount { cpu_millis, memory_bytes, ..Amount::default() };
        let capacity = Capacity::new(amount(2000, 100));
        assert_eq!(capacity.take("a", amount(1500, 60), false), Ok(()));
        assert_eq!(capacity.take("a", amount(1500, 60), false), Ok(()), "its own do not count twice");
        let refused = capacity.take("b", amount(1000, 60), false).unwrap_err();
        assert_eq!(refused, "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.");
        assert_eq!(capacity.take("c", amount(0, 0), false), Ok(()), "one without requests fits anywhere");
        assert_eq!(capacity.take("d", amount(9000, 0), true), Ok(()), "one that ran before stays");
        assert!(capacity.take("e", amount(1, 0), false).is_err());
        capacity.release("d");
        capacity.release("a");
        assert_eq!(capacity.take("b", amount(1000, 60), false), Ok(()));
    }

    #[test]
    fn disk_and_number_of_pods_are_bounded() {
        let pod = |disk_bytes| Amount { disk_bytes, pods: 1, ..Amount::default() };
        let capacity = Capacity::new(Amount { disk_bytes: 100, pods: 2, ..Amount::default() });
        assert_eq!(capacity.take("a", pod(60), false), Ok(()));
        let refused = capacity.take("b", pod(60), false).unwrap_err();
        assert_eq!(refused, "0/1 nodes are available: 1 Insufficient ephemeral-storage.");
        assert_eq!(capacity.take("b", pod(0), false), Ok(()));
        let refused = capacity.take("c", pod(60), false).unwrap_err();
        assert_eq!(refused, "0/1 nodes are available: 1 Insufficient ephemeral-storage, 1 Too many pods.");
        capacity.release("a");
        assert_eq!(capacity.take("c", pod(60), false), Ok(()));
    }
}
