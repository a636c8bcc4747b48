// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which dictionaries of a group are in use, and by how many payloads.
//!
//! A dictionary has a number from when it is added to when its last user is gone after it was retired.
//! Only one of them is current: new payloads are made with that one.

/// Dictionaries that a group has at a time: the current one, and older ones that still have users.
pub const MAX_DICTIONARIES: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The number is free.
    Free,
    /// New payloads are made with it.
    Current,
    /// It is there for its users.
    Retired,
}

#[derive(Clone, Copy, Debug)]
struct Dictionary {
    state: State,
    /// Payloads that need it, and uses of who is about to make one.
    users: u32,
}

/// Payloads after which their mean says something about a dictionary.
pub const SERVED: u32 = 256;

/// How well a dictionary serves: bytes of the payloads of pages that it was tried for and that are based on
/// no other page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Mean of the first [`SERVED`]; 0 until there are so many.
    pub at_first: u32,
    /// Mean of the last full [`SERVED`]; 0 until there are so many.
    pub of_late: u32,
    /// Payloads since then, and their bytes.
    pages: u32,
    bytes: u32,
}

impl Service {
    fn note(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.pages = self.pages.wrapping_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.pages < SERVED {
            return;
        }
        self.of_late = self.bytes / SERVED;
        if self.at_first == 0 {
            self.at_first = self.of_late;
        }
        (self.pages, self.bytes) = (0, 0);
    }
}

/// The dictionaries of a group.
#[derive(Debug)]
pub struct Dictionaries {
    numbers: [Dictionary; MAX_DICTIONARIES as usize],
    /// How well the current one serves.
    service: Service,
}

impl Dictionaries {
    /// None.
    pub const fn new() -> Self {
        const FREE: Dictionary = Dictionary {
            state: State::Free,
            users: 0,
        };
        Self {
            numbers: [FREE; MAX_DICTIONARIES as usize],
            service: Service {
                at_first: 0,
                of_late: 0,
                pages: 0,
                bytes: 0,
            },
        }
    }

    /// Gives a new dictionary a number and makes it the current one; the former one is retired. `None`
    /// when all numbers are taken.
    pub fn add(&mut self) -> Option<u8> {
        let free = self.numbers.iter().position(|d| d.state == State::Free)?;
        self.retire();
        let dictionary = self.numbers.get_mut(free)?;
        dictionary.state = State::Current;
        u8::try_from(free).ok()
    }

    /// Notes that a second look left a page, for which it tried a dictionary, with a payload of `bytes`
    /// bytes that is based on no other page.
    pub fn note(&mut self, number: u8, bytes: usize) {
        if self.current() == Some(number) {
            self.service.note(bytes);
        }
    }

    /// How well the current dictionary serves; of no payloads when there is none.
    pub fn service(&self) -> Service {
        self.service
    }

    /// Retires the current dictionary, if there is one.
    pub fn retire(&mut self) {
        self.service = Service::default();
        for dictionary in &mut self.numbers {
            if dictionary.state == State::Current {
                dictionary.state = State::Retired;
            }
        }
    }

    /// The current dictionary.
    pub fn current(&self) -> Option<u8> {
        let current = self
            .numbers
            .iter()
            .position(|d| d.state == State::Current)?;
        u8::try_from(current).ok()
    }

    /// Takes a use of the current dictionary.
    pub fn acquire_current(&mut self) -> Option<u8> {
        let number = self.current()?;
        let dictionary = self.numbers.get_mut(usize::from(number))?;
        dictionary.users = dictionary.users.checked_add(1)?;
        Some(number)
    }

    /// Takes a use of a dictionary that somebody has a use of. `None` when there is none.
    pub fn acquire(&mut self, number: u8) -> Option<()> {
        let dictionary = self.numbers.get_mut(usize::from(number))?;
        if dictionary.state == State::Free {
            return None;
        }
        dictionary.users = dictionary.users.checked_add(1)?;
        Some(())
    }

    /// Gives up a use.
    pub fn release(&mut self, number: u8) {
        if let Some(dictionary) = self.numbers.get_mut(usize::from(number)) {
            dictionary.users = dictionary.users.saturating_sub(1);
        }
    }

    /// Payloads that need a dictionary, and uses of who is about to make one.
    pub fn users(&self, number: u8) -> u32 {
        self.numbers
            .get(usize::from(number))
            .map_or(0, |dictionary| dictionary.users)
    }

    /// Takes the number of a retired dictionary without users back: the dictionary can go. Call it until
    /// it returns `None`.
    pub fn take_unused(&mut self) -> Option<u8> {
        let unused = self
            .numbers
            .iter()
            .position(|d| d.state == State::Retired && d.users == 0)?;
        self.numbers.get_mut(unused)?.state = State::Free;
        u8::try_from(unused).ok()
    }
}

impl Default for Dictionaries {
    fn default() -> Self {
        Self::new()
    }
}
