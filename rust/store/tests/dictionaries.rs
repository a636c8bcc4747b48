// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is known of a group's dictionaries.

use agentzip_store::{Dictionaries, SERVED};

fn means(dictionaries: &Dictionaries) -> (u32, u32) {
    let service = dictionaries.service();
    (service.at_first, service.of_late)
}

#[test]
fn a_dictionary_that_serves_worse_is_seen() {
    let mut dictionaries = Dictionaries::new();
    let number = dictionaries.add().unwrap();
    for n in 0..SERVED {
        assert_eq!(means(&dictionaries), (0, 0), "too few to tell: {n}");
        dictionaries.note(number, 600 + (n as usize % 2) * 200);
    }
    assert_eq!(means(&dictionaries), (700, 700));
    for _ in 0..SERVED {
        dictionaries.note(number, 1000);
    }
    assert_eq!(means(&dictionaries), (700, 1000));
    // One page less than it takes for another mean.
    for _ in 1..SERVED {
        dictionaries.note(number, 4000);
    }
    assert_eq!(means(&dictionaries), (700, 1000));
    dictionaries.note(number, 4000);
    assert_eq!(means(&dictionaries), (700, 4000));
}

#[test]
fn only_the_current_dictionary_is_looked_at() {
    let mut dictionaries = Dictionaries::new();
    let former = dictionaries.add().unwrap();
    for _ in 0..SERVED {
        dictionaries.note(former, 900);
    }
    let current = dictionaries.add().unwrap();
    assert_eq!(means(&dictionaries), (0, 0), "of the former one");
    for _ in 0..SERVED {
        dictionaries.note(former, 900);
        dictionaries.note(current, 500);
    }
    assert_eq!(means(&dictionaries), (500, 500));
    dictionaries.retire();
    assert_eq!(means(&dictionaries), (0, 0), "there is none");
    dictionaries.note(current, 500);
    assert_eq!(means(&dictionaries), (0, 0));
}
