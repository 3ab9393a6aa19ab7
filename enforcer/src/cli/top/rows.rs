//! The visible rows of the tree, and their order.

use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeSet,
};

use super::picture::{Class, Container, Figures, Picture, Pod};

/// The identity of a row's item, over all pictures.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Id {
    Class(String),
    /// By its uid.
    Pod(String),
    /// By its pod's uid and its name.
    Container(String, String),
}

/// The sort key of pods, and of the containers of a pod; the largest first, except names and ranks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub(super) enum Sort {
    /// The order of eviction; pods that are not evicted come last.
    #[default]
    Rank,
    /// What they use now
    Current,
    /// How fast that grows
    Growth,
    /// What they use in per cent of their request
    #[value(name = "request")]
    PercentOfRequest,
    /// How long they wait for memory
    Stall,
    /// Their names
    Name,
}

impl Sort {
    /// The next sort key.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Rank => Self::Current,
            Self::Current => Self::Growth,
            Self::Growth => Self::PercentOfRequest,
            Self::PercentOfRequest => Self::Stall,
            Self::Stall => Self::Name,
            Self::Name => Self::Rank,
        }
    }

    /// The name in the header.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rank => "rank",
            Self::Current => "current",
            Self::Growth => "growth",
            Self::PercentOfRequest => "% of request",
            Self::Stall => "stall",
            Self::Name => "name",
        }
    }

    fn figures(self, left: &Figures, right: &Figures) -> Ordering {
        match self {
            Self::Rank | Self::Name => Ordering::Equal,
            Self::Current => right.current_bytes.cmp(&left.current_bytes),
            Self::Growth => right.growth_bytes_per_second.cmp(&left.growth_bytes_per_second),
            Self::PercentOfRequest => right.percent_of_request().cmp(&left.percent_of_request()),
            Self::Stall => {
                let stall = |figures: &Figures| figures.stall_percent.unwrap_or(-1.0);
                stall(right).total_cmp(&stall(left))
            }
        }
    }

    fn pods(self, left: &Pod, right: &Pod) -> Ordering {
        let rank = |pod: &Pod| (pod.rank.unwrap_or(usize::MAX), Reverse(pod.figures.current_bytes));
        let by_key = match self {
            Self::Rank => rank(left).cmp(&rank(right)),
            Self::Name => Ordering::Equal,
            _ => self.figures(&left.figures, &right.figures),
        };
        by_key.then_with(|| (&left.namespace, &left.name).cmp(&(&right.namespace, &right.name)))
    }

    fn containers(self, left: &Container, right: &Container) -> Ordering {
        match self {
            // Keep the order of the manifest.
            Self::Rank => Ordering::Equal,
            Self::Name => left.name.cmp(&right.name),
            _ => self.figures(&left.figures, &right.figures),
        }
    }
}

/// A row, as indexes into the picture.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Row {
    Class(usize),
    Pod(usize, usize),
    Container(usize, usize, usize),
}

/// The item that a row shows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item<'a> {
    Class(&'a Class),
    Pod(&'a Pod),
    Container(&'a Pod, &'a Container),
}

impl Row {
    /// The item that it shows; `None` if it belongs to another picture.
    pub(super) fn item(self, picture: &Picture) -> Option<Item<'_>> {
        let class = |class: usize| picture.classes.get(class);
        let pod = |of: usize, pod: usize| class(of)?.pods.get(pod);
        Some(match self {
            Self::Class(index) => Item::Class(class(index)?),
            Self::Pod(of, index) => Item::Pod(pod(of, index)?),
            Self::Container(of, in_pod, index) => {
                let pod = pod(of, in_pod)?;
                Item::Container(pod, pod.containers.get(index)?)
            }
        })
    }
}

impl Item<'_> {
    /// The identity of the item.
    pub(super) fn id(&self) -> Id {
        match self {
            Self::Class(class) => Id::Class(class.name.clone()),
            Self::Pod(pod) => Id::Pod(pod.uid.clone()),
            Self::Container(pod, container) => Id::Container(pod.uid.clone(), container.name.clone()),
        }
    }

    pub(super) fn figures(&self) -> &Figures {
        match self {
            Self::Class(class) => &class.figures,
            Self::Pod(pod) => &pod.figures,
            Self::Container(_, container) => &container.figures,
        }
    }

    /// The pod itself, or the pod of the container.
    pub(super) fn pod(&self) -> Option<&Pod> {
        match self {
            Self::Class(_) => None,
            Self::Pod(pod) | Self::Container(pod, _) => Some(pod),
        }
    }
}

/// The fold states: classes are unfolded by default, pods are folded.
#[derive(Clone, Debug, Default)]
pub(super) struct Folds {
    folded_classes: BTreeSet<String>,
    unfolded_pods: BTreeSet<String>,
    /// Whether all pods are unfolded.
    pub(super) all: bool,
}

impl Folds {
    pub(super) fn is_open(&self, id: &Id) -> bool {
        match id {
            Id::Class(class) => !self.folded_classes.contains(class),
            Id::Pod(uid) => self.all || self.unfolded_pods.contains(uid),
            Id::Container(..) => false,
        }
    }

    /// Folds or unfolds it.
    pub(super) fn set(&mut self, id: &Id, open: bool) {
        let (set, belongs, key) = match id {
            Id::Class(class) => (&mut self.folded_classes, !open, class),
            Id::Pod(uid) => (&mut self.unfolded_pods, open, uid),
            Id::Container(..) => return,
        };
        if belongs {
            set.insert(key.clone());
        } else {
            set.remove(key);
        }
    }

    /// Forgets pods that are gone.
    pub(super) fn keep(&mut self, picture: &Picture) {
        if !self.unfolded_pods.is_empty() {
            let known: BTreeSet<_> = picture.pods().map(|pod| pod.uid.as_str()).collect();
            self.unfolded_pods.retain(|uid| known.contains(uid.as_str()));
        }
    }
}

/// The rows of a picture. With a filter, the pods and containers whose name contains it, and their parents.
pub(super) fn rows(picture: &Picture, folds: &Folds, sort: Sort, filter: &str) -> Vec<Row> {
    let filter = filter.to_lowercase();
    let matches = |name: &str| filter.is_empty() || name.to_lowercase().contains(&filter);
    let mut rows = Vec::new();
    for (at, class) in picture.classes.iter().enumerate() {
        let pod_matches: Vec<_> = class.pods.iter().map(|pod| matches(&pod.label())).collect();
        let found = |index: usize, container: &Container| {
            pod_matches.get(index).is_some_and(|found| *found) || matches(&container.name)
        };
        let is_shown = |index: &usize| {
            let Some(pod) = class.pods.get(*index) else { return false };
            pod_matches.get(*index).is_some_and(|found| *found)
                || pod.containers.iter().any(|container| found(*index, container))
        };
        let mut pods: Vec<_> = (0..class.pods.len()).filter(is_shown).collect();
        if pods.is_empty() {
            continue;
        }
        rows.push(Row::Class(at));
        if !folds.is_open(&Id::Class(class.name.clone())) {
            continue;
        }
        pods.sort_by(|left, right| match (class.pods.get(*left), class.pods.get(*right)) {
            (Some(left), Some(right)) => sort.pods(left, right),
            _ => Ordering::Equal,
        });
        for index in pods {
            rows.push(Row::Pod(at, index));
            let Some(pod) = class.pods.get(index) else { continue };
            let by_name = pod_matches.get(index).is_some_and(|found| *found);
            if by_name && !folds.is_open(&Id::Pod(pod.uid.clone())) {
                continue;
            }
            let mut containers: Vec<_> =
                pod.containers.iter().enumerate().filter(|(_, container)| found(index, container)).collect();
            containers.sort_by(|(_, left), (_, right)| sort.containers(left, right));
            rows.extend(containers.into_iter().map(|(inner, _)| Row::Container(at, index, inner)));
        }
    }
    rows
}
