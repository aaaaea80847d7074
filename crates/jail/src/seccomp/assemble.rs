//! Turns a table of answers into a classic BPF program, at compile time.

use std::io;

use libc::sock_filter;

use super::table::{Answer, TABLE};

/// Bound of the program; the kernel's own is 4096 instructions.
const MOST_INSTRUCTIONS: usize = 640;
/// Bound of the ranges of neighbouring numbers with the same answer.
const MOST_RANGES: usize = 256;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
/// Numbers from here on are of the x32 ABI (x86_64 only), or negative.
const FOREIGN_NUMBERS: u32 = 0x4000_0000;

/// Marks a jump whose target is not known yet; no distance is that long.
const PENDING: u32 = 0x8000_0000;

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const MASK: u16 = 0x54;
const RETURN: u16 = 0x06;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// The offset of the architecture in what a filter sees.
const ARCHITECTURE: u32 = 4;

const fn errno(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | number as u32
}

/// The offset of the lower half of an argument. All arguments looked at are 32 bits wide to the kernel, which
/// ignores the upper half, and so must a filter.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// A finished program.
pub(super) struct Program {
    code: [sock_filter; MOST_INSTRUCTIONS],
    len: usize,
}

impl Program {
    /// Assembles the program for a table; a program too long is an error of compilation.
    pub(super) const fn assemble(table: &[Answer; TABLE]) -> Program {
        let nothing = sock_filter { code: RETURN, jt: 0, jf: 0, k: KILL };
        let mut program = Program { code: [nothing; MOST_INSTRUCTIONS], len: 0 };
        program.push(LOAD, 0, 0, ARCHITECTURE);
        program.push(IF_EQUAL, 1, 0, NATIVE);
        program.push(RETURN, 0, 0, KILL);
        program.push(LOAD, 0, 0, 0);
        program.push(IF_AT_LEAST, 0, 1, FOREIGN_NUMBERS);
        program.push(RETURN, 0, 0, KILL);
        let ranges = Ranges::of(table);
        let tree = program.len;
        program.search(&ranges, 0, ranges.len);
        let tree_end = program.len;
        let mut check = 0;
        while check < Answer::CHECKS.len() {
            let start = program.len;
            program.check(Answer::CHECKS[check]);
            program.link(tree, tree_end, Answer::CHECKS[check], start);
            check += 1;
        }
        program
    }

    const fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        assert!(self.len < MOST_INSTRUCTIONS, "the filter is too long");
        self.code[self.len] = sock_filter { code, jt, jf, k };
        self.len += 1;
    }

    /// The search tree over `ranges[from..to]`; a leaf is one instruction.
    const fn search(&mut self, ranges: &Ranges, from: usize, to: usize) {
        if to - from == 1 {
            match ranges.answers[from] {
                Answer::Allow => self.push(RETURN, 0, 0, ALLOW),
                Answer::Refuse => self.push(RETURN, 0, 0, errno(libc::EPERM)),
                Answer::Unknown => self.push(RETURN, 0, 0, errno(libc::ENOSYS)),
                // The target is not known yet: `link` puts it in.
                check => self.push(JUMP, 0, 0, PENDING | check as u32),
            }
            return;
        }
        let middle = (from + to) / 2;
        let branch = self.len;
        self.push(IF_AT_LEAST, 0, 0, ranges.starts[middle]);
        self.search(ranges, from, middle);
        let left = self.len - branch - 1;
        assert!(left <= u8::MAX as usize, "a branch of the filter is too far");
        self.code[branch].jt = left as u8;
        self.search(ranges, middle, to);
    }

    /// Points the leaves of a check at its code.
    const fn link(&mut self, tree: usize, tree_end: usize, check: Answer, start: usize) {
        let mut at = tree;
        while at < tree_end {
            if self.code[at].code == JUMP && self.code[at].k == PENDING | check as u32 {
                self.code[at].k = (start - at - 1) as u32;
            }
            at += 1;
        }
    }

    /// The code that looks at the arguments.
    const fn check(&mut self, check: Answer) {
        match check {
            Answer::Clone => self.refuse_bits(0, super::table::NAMESPACES),
            Answer::Unshare => self.refuse_bits(0, super::table::NAMESPACES | libc::CLONE_NEWTIME as u32),
            Answer::Ioctl => self.refuse_values(1, &[libc::TIOCSTI as u32, super::table::TIOCLINUX]),
            Answer::Prctl => self.refuse_values(0, &[libc::PR_SET_MM as u32]),
            Answer::Personality => self.personality(),
            Answer::Socket => self.socket(),
            Answer::SocketPair => {
                self.push(LOAD, 0, 0, argument(0));
                self.push(IF_EQUAL, 0, 1, libc::AF_UNIX as u32);
                self.push(RETURN, 0, 0, ALLOW);
                self.push(RETURN, 0, 0, errno(libc::EAFNOSUPPORT));
            }
            Answer::ModeSecond => self.refuse_bits(1, super::table::SET_ID_BITS),
            Answer::ModeThird => self.refuse_bits(2, super::table::SET_ID_BITS),
            Answer::Open => self.created_mode(1),
            Answer::OpenAt => self.created_mode(2),
            Answer::Allow | Answer::Refuse | Answer::Unknown => panic!("looks at no argument"),
        }
    }

    const fn refuse_bits(&mut self, index: u32, bits: u32) {
        self.push(LOAD, 0, 0, argument(index));
        self.push(IF_ANY_BIT, 0, 1, bits);
        self.push(RETURN, 0, 0, errno(libc::EPERM));
        self.push(RETURN, 0, 0, ALLOW);
    }

    const fn refuse_values(&mut self, index: u32, values: &[u32]) {
        self.push(LOAD, 0, 0, argument(index));
        let mut at = 0;
        while at < values.len() {
            self.push(IF_EQUAL, 0, 1, values[at]);
            self.push(RETURN, 0, 0, errno(libc::EPERM));
            at += 1;
        }
        self.push(RETURN, 0, 0, ALLOW);
    }

    /// Linux as it is, without address randomisation (debuggers, some Lisps), or the question.
    const fn personality(&mut self) {
        self.push(LOAD, 0, 0, argument(0));
        self.push(IF_EQUAL, 3, 0, 0);
        self.push(IF_EQUAL, 2, 0, libc::ADDR_NO_RANDOMIZE as u32);
        self.push(IF_EQUAL, 1, 0, 0xffff_ffff);
        self.push(RETURN, 0, 0, errno(libc::EPERM));
        self.push(RETURN, 0, 0, ALLOW);
    }

    /// Local sockets; TCP, UDP and ping over IP; the routing part of netlink, by which a C library lists addresses.
    /// The errors are those of a kernel built without the rest, which programs know how to take.
    const fn socket(&mut self) {
        self.push(LOAD, 0, 0, argument(0));
        self.push(IF_EQUAL, 0, 1, libc::AF_UNIX as u32);
        self.push(RETURN, 0, 0, ALLOW);
        self.push(IF_EQUAL, 5, 0, libc::AF_INET as u32);
        self.push(IF_EQUAL, 4, 0, libc::AF_INET6 as u32);
        self.push(IF_EQUAL, 0, 2, libc::AF_NETLINK as u32);
        self.push(LOAD, 0, 0, argument(2));
        self.push(IF_EQUAL, 13, 12, libc::NETLINK_ROUTE as u32);
        self.push(RETURN, 0, 0, errno(libc::EAFNOSUPPORT));
        // IP: the type without its flags, then the protocol.
        self.push(LOAD, 0, 0, argument(1));
        self.push(MASK, 0, 0, 0xf);
        self.push(IF_EQUAL, 2, 0, libc::SOCK_STREAM as u32);
        self.push(IF_EQUAL, 1, 0, libc::SOCK_DGRAM as u32);
        self.push(RETURN, 0, 0, errno(libc::EPERM));
        self.push(LOAD, 0, 0, argument(2));
        self.push(IF_EQUAL, 5, 0, 0);
        self.push(IF_EQUAL, 4, 0, libc::IPPROTO_TCP as u32);
        self.push(IF_EQUAL, 3, 0, libc::IPPROTO_UDP as u32);
        self.push(IF_EQUAL, 2, 0, libc::IPPROTO_ICMP as u32);
        self.push(IF_EQUAL, 1, 0, libc::IPPROTO_ICMPV6 as u32);
        self.push(RETURN, 0, 0, errno(libc::EPROTONOSUPPORT));
        self.push(RETURN, 0, 0, ALLOW);
    }

    /// A mode counts only where a file may be created: elsewhere the register holds anything. The argument after
    /// the flags is the mode.
    const fn created_mode(&mut self, flags: u32) {
        // `O_TMPFILE` contains `O_DIRECTORY`, with which nothing is created; only its own bit counts.
        let creating = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
        self.push(LOAD, 0, 0, argument(flags));
        self.push(IF_ANY_BIT, 1, 0, creating);
        self.push(RETURN, 0, 0, ALLOW);
        self.refuse_bits(flags + 1, super::table::SET_ID_BITS);
    }

    /// Installs it for the calling thread, after `no_new_privs`.
    pub(super) fn install(&self) -> io::Result<()> {
        // SAFETY: plain numbers; the call changes one flag of the thread.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let program = libc::sock_fprog {
            len: self.len as u16,
            // The kernel only reads; the type is older than `const`.
            filter: self.code.as_ptr().cast_mut(),
        };
        // SAFETY: `program` points at `len` instructions of a static, which the kernel copies before it returns.
        let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if done != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The instructions.
    #[cfg(test)]
    pub(super) fn instructions(&self) -> &[sock_filter] {
        &self.code[..self.len]
    }
}

/// Neighbouring numbers with the same answer.
struct Ranges {
    starts: [u32; MOST_RANGES],
    answers: [Answer; MOST_RANGES],
    len: usize,
}

impl Ranges {
    const fn of(table: &[Answer; TABLE]) -> Ranges {
        let mut ranges =
            Ranges { starts: [0; MOST_RANGES], answers: [Answer::Unknown; MOST_RANGES], len: 0 };
        let mut number = 0;
        // One past the table stands for all higher numbers, which are unknown.
        while number <= TABLE {
            let answer = if number < TABLE { table[number] } else { Answer::Unknown };
            if ranges.len == 0 || ranges.answers[ranges.len - 1] as u8 != answer as u8 {
                assert!(ranges.len < MOST_RANGES, "too many ranges of system calls");
                ranges.starts[ranges.len] = number as u32;
                ranges.answers[ranges.len] = answer;
                ranges.len += 1;
            }
            number += 1;
        }
        ranges
    }
}
