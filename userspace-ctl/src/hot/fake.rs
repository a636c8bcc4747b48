// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Processes of tests: pages by number, which are mapped, there, written, cold.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range as Numbers;
use std::sync::{Arc, Mutex, MutexGuard};

use agentzip_uapi::Range;

use super::process::{Most, Processes, Subject};
use super::{Identity, Target};
use crate::error::Result;
use crate::governor::Id;
use crate::sys::pages::{Advice, Kind};
use crate::PAGE_SIZE;

/// The range of these pages.
pub fn page(start: u64, end: u64) -> Range {
    Range {
        start: start * PAGE_SIZE,
        end: end * PAGE_SIZE,
    }
}

#[derive(Debug, Default)]
struct State {
    sandbox: Id,
    /// It has left the sandbox since it was listed.
    left: bool,
    gone: bool,
    dies: bool,
    errno: Option<i32>,
    command: Option<String>,
    generation: u64,
    extra: u64,
    cleared: usize,
    mappings: Vec<Numbers<u64>>,
    present: BTreeSet<u64>,
    written: BTreeSet<u64>,
    marked: Vec<Numbers<u64>>,
    cold: BTreeSet<u64>,
    locked: BTreeSet<u64>,
}

/// Processes by number.
#[derive(Debug, Default)]
pub struct Fake(BTreeMapOfStates);

type BTreeMapOfStates = Mutex<BTreeMap<i32, Arc<Mutex<State>>>>;

struct One(i32, Arc<Mutex<State>>);

impl Fake {
    pub fn target(id: Id) -> Target {
        Target {
            id,
            path: format!("/cgroup/{id}").into(),
            name: format!("/{id}"),
        }
    }

    fn of(&self, pid: i32) -> Arc<Mutex<State>> {
        self.0.lock().unwrap()[&pid].clone()
    }

    fn change(&self, pid: i32, change: impl FnOnce(&mut State)) {
        change(&mut self.of(pid).lock().unwrap());
    }

    /// Starts a process that has these pages.
    pub fn start(&self, sandbox: Id, pid: i32, pages: Numbers<u64>) {
        let state = State {
            sandbox,
            present: pages.clone().collect(),
            mappings: vec![pages],
            ..State::default()
        };
        self.0
            .lock()
            .unwrap()
            .insert(pid, Arc::new(Mutex::new(state)));
    }

    /// Maps more, once.
    pub fn map(&self, pid: i32, pages: Numbers<u64>) {
        self.change(pid, |state| {
            if !state.mappings.contains(&pages) {
                state.mappings.push(pages.clone());
                state.present.extend(pages);
            }
        });
    }

    pub fn write(&self, pid: i32, pages: impl IntoIterator<Item = u64>) {
        self.change(pid, |state| {
            for page in pages {
                state.present.insert(page);
                state.written.insert(page);
            }
        });
    }

    /// The kernel marks a mapping as a whole.
    pub fn mark(&self, pid: i32, pages: Numbers<u64>) {
        self.change(pid, |state| state.marked.push(pages));
    }

    pub fn call(&self, pid: i32, command: &str) {
        self.change(pid, |state| state.command = Some(command.to_owned()));
    }

    pub fn exec(&self, pid: i32) {
        self.change(pid, |state| state.generation += 1);
    }

    pub fn resize(&self, pid: i32, bytes: u64) {
        self.change(pid, |state| state.extra = bytes);
    }

    pub fn vanish(&self, pid: i32) {
        self.change(pid, |state| state.gone = true);
    }

    pub fn leave(&self, pid: i32) {
        self.change(pid, |state| state.left = true);
    }

    pub fn die_at_advice(&self, pid: i32) {
        self.change(pid, |state| state.dies = true);
    }

    pub fn refuse(&self, pid: i32, errno: i32) {
        self.change(pid, |state| state.errno = Some(errno));
    }

    pub fn lock(&self, pid: i32, pages: Numbers<u64>) {
        self.change(pid, |state| state.locked.extend(pages));
    }

    pub fn cleared(&self, pid: i32) -> usize {
        self.of(pid).lock().unwrap().cleared
    }

    pub fn present(&self, pid: i32) -> Vec<u64> {
        self.of(pid)
            .lock()
            .unwrap()
            .present
            .iter()
            .copied()
            .collect()
    }

    pub fn cold(&self, pid: i32) -> Vec<u64> {
        self.of(pid).lock().unwrap().cold.iter().copied().collect()
    }

    pub fn identity(&self, pid: i32) -> Identity {
        One(pid, self.of(pid)).identity()
    }
}

impl Processes for Fake {
    fn list(&self, target: &Target, most: Most) -> Result<Vec<i32>> {
        let all = self.0.lock().unwrap();
        let inside = all
            .iter()
            .filter(|(_, state)| state.lock().unwrap().sandbox == target.id);
        Ok(inside.map(|(pid, _)| *pid).take(most.processes).collect())
    }

    fn open(&self, _: &Target, pid: i32) -> io::Result<Option<Box<dyn Subject>>> {
        let one = One(pid, self.of(pid));
        let there = {
            let state = one.state()?;
            !state.left
        };
        Ok(there.then_some(Box::new(one)))
    }
}

impl One {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.1.lock().unwrap();
        match state.errno.or(state.gone.then_some(libc::ESRCH)) {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(state),
        }
    }
}

impl Subject for One {
    fn identity(&self) -> Identity {
        Identity {
            pid: self.0,
            stack: self.1.lock().unwrap().generation,
            ..Identity::default()
        }
    }

    fn resident(&self) -> io::Result<u64> {
        let state = self.state()?;
        Ok(state.present.len() as u64 * PAGE_SIZE + state.extra)
    }

    fn mappings(&self) -> io::Result<Vec<Range>> {
        let mappings = self.state()?.mappings.clone();
        Ok(mappings
            .into_iter()
            .map(|pages| page(pages.start, pages.end))
            .collect())
    }

    fn private(&self) -> io::Result<Vec<Range>> {
        self.mappings()
    }

    fn command(&self) -> io::Result<String> {
        let state = self.state()?;
        Ok(state.command.clone().unwrap_or_else(|| "tool".to_owned()))
    }

    fn is_alive(&self) -> bool {
        !self.1.lock().unwrap().gone
    }

    fn scan(&self, range: Range, kind: Kind, most: u64, runs: &mut Vec<Range>) -> io::Result<u64> {
        let state = self.state()?;
        let (first, mut pages, mut new) = (range.start / PAGE_SIZE, 0, 0);
        for at in state.present.range(first..range.end / PAGE_SIZE) {
            let written =
                state.written.contains(at) || state.marked.iter().any(|all| all.contains(at));
            if kind == Kind::Written && !written {
                continue;
            }
            let here = page(*at, at + 1);
            let joins = new > 0 && runs.last().is_some_and(|last| last.end == here.start);
            if pages == most || (!joins && new == 512) {
                return Ok(runs.last().map_or(range.start, |last| last.end));
            }
            pages += 1;
            match runs.last_mut().filter(|_| joins) {
                Some(last) => last.end = here.end,
                None => {
                    runs.push(here);
                    new += 1;
                }
            }
        }
        Ok(range.end)
    }

    fn clear(&self) -> io::Result<()> {
        let mut state = self.state()?;
        state.written.clear();
        state.marked.clear();
        state.cleared += 1;
        Ok(())
    }

    fn advise(&self, ranges: &[Range], advice: Advice) -> io::Result<u64> {
        let mut state = self.state()?;
        if state.dies {
            state.gone = true;
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let mut done = 0;
        for range in ranges {
            for page in range.start / PAGE_SIZE..range.end / PAGE_SIZE {
                if state.locked.contains(&page) {
                    return match done {
                        0 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
                        done => Ok(done),
                    };
                }
                match advice {
                    Advice::PageOut => drop(state.present.remove(&page)),
                    Advice::Cold => drop(state.cold.insert(page)),
                    Advice::WillNeed => {}
                }
            }
            done += range.end - range.start;
        }
        Ok(done)
    }
}
