//! Scans one file many times.
use hutch_scan::{At, Direction, Location, Scanner, State};
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let bytes = std::fs::read(&a[1]).unwrap();
    let bytes = &bytes[..bytes.len().min(1 << 20)];
    let d = if a[2] == "in" { Direction::Inbound } else { Direction::Outbound };
    let scanner = Scanner::builtin();
    let rounds: usize = a[3].parse().unwrap();
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let t = cpu();
        let f = scanner.scan_whole(&mut State::new(d), &Location::new(At::Body), bytes);
        best = best.min(cpu() - t);
        std::hint::black_box(f.len());
    }
    println!("{} {:.0} MB/s", a[1], bytes.len() as f64 / best / 1e6);
}
