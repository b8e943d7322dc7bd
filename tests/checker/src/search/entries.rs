//! Lowe's list: the calls and returns of the operations that are not placed yet, in the order of time. Removing an operation
//! and putting it back cost a few writes each, if they are undone in the reverse order.

use super::prepare::Item;

/// A place in the list.
pub(super) type Node = u32;

/// Node i is the call of operation i, node n + i its return, node 2n both ends. Unknown writes have no return.
pub(super) struct Entries {
    items: u32,
    next: Vec<Node>,
    prev: Vec<Node>,
    returns: Vec<bool>,
}

impl Entries {
    pub fn new(items: &[Item]) -> Self {
        let n = items.len() as u32;
        let ends = 2 * n;
        // A call and a return at the same time are concurrent: the call goes first.
        let mut events: Vec<(u64, bool, Node)> = Vec::with_capacity(items.len() * 2);
        for (i, item) in items.iter().enumerate() {
            events.push((item.call, false, i as Node));
            if item.is_mandatory() {
                events.push((item.ret, true, n + i as Node));
            }
        }
        events.sort_unstable();
        let mut next = vec![ends; ends as usize + 1];
        let mut prev = vec![ends; ends as usize + 1];
        let mut last = ends;
        for (_, _, node) in events {
            next[last as usize] = node;
            prev[node as usize] = last;
            last = node;
        }
        next[last as usize] = ends;
        prev[ends as usize] = last;
        let returns = items.iter().map(Item::is_mandatory).collect();
        Self { items: n, next, prev, returns }
    }

    pub fn first(&self) -> Node {
        self.next[2 * self.items as usize]
    }

    pub fn next(&self, node: Node) -> Node {
        self.next[node as usize]
    }

    /// What follows, once the operation is removed.
    pub fn next_but(&self, node: Node, item: u32) -> Node {
        let next = self.next(node);
        if next == self.items + item { self.next(next) } else { next }
    }

    /// The operation that is called here; `None` at a return and at the end.
    pub fn called(&self, node: Node) -> Option<u32> {
        (node < self.items).then_some(node)
    }

    /// The operation that returns here; `None` at the end.
    pub fn first_return(&self, node: Node) -> Option<u32> {
        (self.items..2 * self.items).contains(&node).then(|| node - self.items)
    }

    pub fn remove(&mut self, item: u32) {
        self.unlink(item);
        if self.returns[item as usize] {
            self.unlink(self.items + item);
        }
    }

    /// Undoes the last removal.
    pub fn restore(&mut self, item: u32) {
        if self.returns[item as usize] {
            self.link(self.items + item);
        }
        self.link(item);
    }

    fn unlink(&mut self, node: Node) {
        let (prev, next) = (self.prev[node as usize], self.next[node as usize]);
        self.next[prev as usize] = next;
        self.prev[next as usize] = prev;
    }

    fn link(&mut self, node: Node) {
        let (prev, next) = (self.prev[node as usize], self.next[node as usize]);
        self.next[prev as usize] = node;
        self.prev[next as usize] = node;
    }
}
