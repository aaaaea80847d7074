//! The network plan of a jail: captures, listeners and who owns the namespace.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use hutch_jail::{Capture, Listener, Network, NetworkPlan, Transport, Warden};

use crate::ending::{wait_for, words_of_shell};
use crate::harness::{Bench, Caller, WARDEN};

const CALLERS: [Caller; 2] = [Caller::Root, Caller::Ordinary];

/// All TCP and UDP port 53, of both IP versions, go to listeners.
fn captured() -> NetworkPlan {
    let mut plan = NetworkPlan::closed(vec!["10.89.7.7".parse().unwrap()]);
    for (transport, port, to) in [
        (Transport::Tcp, None, "198.18.0.1:9001"),
        (Transport::Tcp, None, "[fd00:6875::1]:9001"),
        (Transport::Udp, Some(53), "198.18.0.1:53"),
    ] {
        let to: SocketAddr = to.parse().unwrap();
        plan.listeners.push(Listener { transport, address: to, transparent: true });
        plan.captures.push(Capture { transport, port, to });
    }
    plan
}

/// Runs a Python program in a jail of this plan; what it printed.
fn python(caller: Caller, plan: NetworkPlan, program: &str) -> String {
    let mut bench = Bench::new(caller);
    bench.spec.network = Network::New(plan);
    let head = "import socket\n\
        def tcp(host, port):\n    \
            try:\n        \
                with socket.create_connection((host, port), 5) as s: return s.makefile().readline().strip()\n    \
            except OSError as error: return type(error).__name__\n";
    let report = bench.launch(&["python3".to_owned(), "-c".to_owned(), format!("{head}{program}")]);
    assert_eq!((report.error.as_deref(), report.stderr.as_str()), (None, ""), "{caller:?}");
    report.stdout.trim().to_owned()
}

#[test]
fn captured_connection_reaches_the_listener_with_its_destination() {
    hutch_testkit::require!(root, user_namespaces, python);
    let program = "for host, port in [('1.2.3.4', 80), ('169.254.169.254', 443), ('198.18.0.1', 9001), ('2001:db8::1', 22)]:\n    \
            print(tcp(host, port))\n";
    for caller in CALLERS {
        let found = python(caller, captured(), program);
        assert_eq!(found, "1.2.3.4:80\n169.254.169.254:443\n198.18.0.1:9001\n[2001:db8::1]:22", "{caller:?}");
    }
}

#[test]
fn loopback_and_own_address_are_not_captured() {
    hutch_testkit::require!(root, user_namespaces, python);
    let program = "for host in ['127.0.0.1', '127.9.9.9', '::1', '10.89.7.7']: print(tcp(host, 80))\n";
    for caller in CALLERS {
        let found = python(caller, captured(), program);
        assert_eq!(found, ["ConnectionRefusedError"; 4].join("\n"), "{caller:?}");
    }
}

#[test]
fn listener_inside_takes_no_captured_connection() {
    hutch_testkit::require!(root, user_namespaces, python);
    let program = "own = []\n\
        for address in [('0.0.0.0', 443), ('1.2.3.4', 443), ('198.18.0.1', 443)]:\n    \
            s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n    \
            try:\n        s.bind(address); s.listen(); own.append(s)\n    \
            except OSError as error: pass\n\
        print(len(own) > 0, tcp('1.2.3.4', 443))\n\
        t = socket.socket()\n\
        try: t.setsockopt(socket.SOL_IP, 19, 1); print('transparent')\n\
        except PermissionError: print('refused')\n";
    for caller in CALLERS {
        assert_eq!(python(caller, captured(), program), "True 1.2.3.4:443\nrefused", "{caller:?}");
    }
}

#[test]
fn only_the_captured_udp_port_is_delivered() {
    hutch_testkit::require!(root, user_namespaces, python);
    let program = "for port in [53, 443]:\n    \
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)\n    \
            s.sendto(b'query', ('8.8.8.8', port)) if port == 53 else s.connect(('8.8.8.8', port))\n    \
            if port == 443: s.send(b'x')\n    \
            try: print(s.recv(64))\n    \
            except OSError as error: print(type(error).__name__)\n";
    for caller in CALLERS {
        assert_eq!(python(caller, captured(), program), "b'query'\nConnectionRefusedError", "{caller:?}");
    }
}

#[test]
fn closed_plan_refuses_connections_from_its_own_address() {
    hutch_testkit::require!(root, user_namespaces, python);
    let program = "print(tcp('1.2.3.4', 80), tcp('2001:db8::1', 80))\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('8.8.8.8', 53)); print(s.getsockname()[0])\n";
    let plan = NetworkPlan::closed(vec!["10.89.7.7".parse().unwrap()]);
    for caller in CALLERS {
        let found = python(caller, plan.clone(), program);
        assert_eq!(found, "ConnectionRefusedError ConnectionRefusedError\n10.89.7.7", "{caller:?}");
    }
}

#[test]
fn warden_gives_each_plan_its_own_namespace_and_listeners() {
    hutch_testkit::require!(root);
    let bench = Bench::new(Caller::Root);
    let warden = Warden::start(WARDEN.as_ref(), &bench.folder.path().join("state")).unwrap();
    // More than the warden has in stock.
    let made: Vec<_> = (0..9).map(|_| warden.network(&captured()).unwrap()).collect();
    let distinct: BTreeSet<u64> = made.iter().map(|network| inode(network.namespace.as_fd())).collect();
    assert_eq!(distinct.len(), made.len());
    let own = inode(std::fs::File::open("/proc/self/ns/net").unwrap().as_fd());
    assert!(!distinct.contains(&own));
    for network in &made {
        let addresses: Vec<SocketAddr> = network
            .listeners
            .iter()
            .map(|socket| rustix::net::getsockname(socket).unwrap().try_into().unwrap())
            .collect();
        let planned: Vec<SocketAddr> = captured().listeners.iter().map(|listener| listener.address).collect();
        assert_eq!(addresses, planned);
        assert_eq!(inode(owner(network.namespace.as_fd()).as_fd()), initial_user_namespace());
    }
}

#[test]
fn warden_stays_in_its_namespace_after_a_plan_that_fails() {
    hutch_testkit::require!(root);
    let bench = Bench::new(Caller::Root);
    let warden = Warden::start(WARDEN.as_ref(), &bench.folder.path().join("state")).unwrap();
    let mut plan = captured();
    plan.listeners.push(plan.listeners[0].clone());
    let error = warden.network(&plan).unwrap_err().to_string();
    assert!(error.contains("bind a listener") || error.contains("listen"), "{error}");
    let network = warden.network(&captured()).unwrap();
    let namespaces =
        [inode(network.namespace.as_fd()), inode(std::fs::File::open("/proc/self/ns/net").unwrap().as_fd())];
    assert_ne!(namespaces[0], namespaces[1]);
}

#[test]
fn network_of_a_run_belongs_to_the_user_namespace_of_the_jail() {
    hutch_testkit::require!(root);
    let bench = Bench::new(Caller::Root);
    let mark = format!("hutch-mark-network{}", std::process::id());
    let mut launcher = bench.start(&words_of_shell(&mark));
    let inside = wait_for(&mark);
    let open = |name: &str| std::fs::File::open(format!("/proc/{inside}/ns/{name}")).unwrap();
    let (network, user) = (open("net"), inode(open("user").as_fd()));
    assert_eq!(inode(owner(network.as_fd()).as_fd()), user);
    assert_ne!(user, initial_user_namespace());
    launcher.kill().unwrap();
    launcher.wait().unwrap();
}

fn inode(file: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(file).unwrap().st_ino
}

fn initial_user_namespace() -> u64 {
    inode(std::fs::File::open("/proc/self/ns/user").unwrap().as_fd())
}

/// The user namespace that owns a namespace.
fn owner(namespace: BorrowedFd<'_>) -> OwnedFd {
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    // SAFETY: the request takes no argument and returns a new descriptor.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
