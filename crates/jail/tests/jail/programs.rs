//! Common programs work: the filter refuses nothing that they need.

use std::path::Path;

use hutch_jail::{Mount, MountSource};

use crate::harness::{Bench, Caller};

/// A program of `/usr`, a shell script that uses it in `/tmp`, and what the script prints.
const PROGRAMS: [(&str, &str, &str); 11] = [
    (
        "bash",
        "cat <(echo one) | while read -r line; do echo \"$line\"; done; trap 'echo two' EXIT",
        "one\ntwo",
    ),
    (
        "python3",
        "cat > t.py <<'E'\nimport asyncio, multiprocessing, threading, subprocess, socket, tempfile, sqlite3\n\
         def work(n): return n * 2\n\
         async def main():\n    server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)\n    \
         await asyncio.open_connection(*server.sockets[0].getsockname())\n    \
         p = await asyncio.create_subprocess_exec('echo', 'three', stdout=-1)\n    \
         return (await p.communicate())[0].decode().strip()\n\
         if __name__ == '__main__':\n    \
         with multiprocessing.get_context('spawn').Pool(2) as pool: print(pool.map(work, [1, 2]))\n    \
         with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(work, [3]))\n    \
         t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n    \
         print(asyncio.run(main()), socket.getaddrinfo('127.0.0.1', 80)[0][4][0])\nE\npython3 t.py",
        "[2, 4]\n[6]\nthread\nthree 127.0.0.1",
    ),
    ("pip3", "pip3 --version | cut -d' ' -f1", "pip"),
    (
        "node",
        "node -e \"const {Worker}=require('worker_threads');new Worker('require(\\\"worker_threads\\\")\
         .parentPort.postMessage(7)',{eval:true}).on('message',m=>console.log(m,require('child_process')\
         .execSync('echo x').toString().trim()))\"",
        "7 x",
    ),
    (
        "git",
        "git init -q r && cd r && git config user.email a@b && git config user.name c && echo x > f && git add f \
         && git commit -qm m && git log --oneline | wc -l",
        "1",
    ),
    ("gcc", "echo 'int main(){return 7;}' > a.c && gcc -o a a.c && ./a; echo $?", "7"),
    ("sqlite3", "sqlite3 db 'create table t(x); insert into t values(5); select x from t'", "5"),
    (
        "java",
        "printf 'class A{public static void main(String[]a)throws Exception{Thread t=new Thread(()->System.out\
         .println(9));t.start();t.join();}}' > A.java && java -XX:-UsePerfData A.java",
        "9",
    ),
    ("perl", "perl -e 'open(my $f, \"-|\", \"echo 3\"); print <$f>'", "3"),
    (
        "dpkg-deb",
        "mkdir -p p/DEBIAN && printf 'Package: p\\nVersion: 1\\nArchitecture: all\\nMaintainer: m\\n\
      Description: d\\n' > p/DEBIAN/control && dpkg-deb -b p p.deb >/dev/null && dpkg-deb -f p.deb Version",
        "1",
    ),
    (
        // Itself written in Go, with the threads of its runtime; to compile something takes long.
        "local/go/bin/gofmt",
        "printf 'package main\nfunc  main( ){ }\n' | /usr/local/go/bin/gofmt | tail -1 && /usr/local/go/bin/go env GOOS",
        "func main() {}\nlinux",
    ),
];

#[test]
fn programs_run_in_a_jail() {
    hutch_testkit::require!(root, user_namespaces);
    let mut failures = Vec::new();
    for caller in [Caller::Root, Caller::Ordinary] {
        let mut bench = Bench::new(caller);
        for mount in &mut bench.spec.mounts {
            if let MountSource::Tmpfs { bytes, .. } = &mut mount.source {
                *bytes = 1 << 30;
            }
        }
        // Where Debian keeps which Java is meant, and its settings.
        bench.spec.mounts.push(Mount {
            source: MountSource::Bind("/etc".into()),
            target: "/etc".into(),
            read_only: true,
        });
        for (program, script, prints) in PROGRAMS {
            let there = ["/usr", "/usr/bin"].iter().any(|folder| Path::new(folder).join(program).is_file());
            if !there {
                hutch_testkit::note_skip(&format!("{program} in a jail"), "not under /usr on this machine");
                continue;
            }
            let script = format!("export HOME=/tmp; cd /tmp; {script}");
            let report = bench.launch(&["/bin/bash".to_owned(), "-c".to_owned(), script]);
            if report.stdout.trim() != prints {
                failures.push(format!("{program} ({caller:?}): {report:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
