use super::Contender;

/// Within what the scores of a pod's containers are held: those within it stay, and the others come as near as they may.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Band {
    least: i16,
    most: i16,
}

impl Band {
    /// From `least` to `most`; none where that is nothing, or no score.
    pub(super) fn new(least: i128, most: i128) -> Option<Self> {
        let (least, most) = (i16::try_from(least).ok()?, i16::try_from(most).ok()?);
        (least <= most).then_some(Self { least, most })
    }

    /// The lowest score in it.
    #[must_use]
    pub fn least(self) -> i16 {
        self.least
    }

    /// The highest.
    #[must_use]
    pub fn most(self) -> i16 {
        self.most
    }

    /// What a container has instead of this score.
    #[must_use]
    pub fn hold(self, score: i16) -> i16 {
        score.clamp(self.least, self.most)
    }

    /// Whether any of its containers has another score for it.
    pub(super) fn moves(self, contender: &Contender) -> bool {
        self.hold(contender.lowest) != contender.lowest || self.hold(contender.highest) != contender.highest
    }
}
