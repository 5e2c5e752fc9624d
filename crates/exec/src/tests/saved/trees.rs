//! The state of boosted trees.

use super::{Case, nodes};

pub(super) fn cases() -> Vec<Case> {
    let case = |kind, text: &str, fill, reads, then| Case { kind, nodes: nodes(text), fill, reads, then };
    vec![
        // By hand: half of each weight is added to the leaf, and a tree of one layer is complete.
        case(
            "ensemble of trees",
            "e = BoostedTreesEnsembleResourceHandleOp shared_name=\"e\" container=\"\"
            stamp = Const is=(5l)
            first = Const is=(0,)
            no_text = StringJoin N=0
            make = BoostedTreesCreateEnsemble e stamp no_text
            gain = Const is=(1.5,)
            bucket = Const is=(3,)
            column = Const is=(1,1)
            low = Const is=(-1.0,)
            left = Reshape low column
            high = Const is=(2.0,)
            right = Reshape high column
            depth = Const is=(1)
            rate = Const is=(0.5)
            grow = BoostedTreesUpdateEnsemble e first first gain bucket left right depth rate pruning_mode=0
            x = Const is=(1,5)
            predict = BoostedTreesPredict e x logits_dimension=1
            all = Const is=(-1,)
            flat = Reshape predict all
            states = BoostedTreesGetEnsembleStates e
            is_made = IsBoostedTreesEnsembleInitialized e",
            &["^make", "^grow"],
            &["flat", "states", "is_made"],
            &[
                ("flat", "-0.5,1.0"),
                ("states", "6l"),
                ("states:1", "2"),
                ("^make", ""),
                ("^grow", ""),
                ("flat", "-1.0,2.0"),
                ("is_made", "true"),
            ],
        ),
        // By hand: four values of the same weight, of which three are kept.
        case(
            "streams of quantiles",
            "s = BoostedTreesQuantileStreamResourceHandleOp shared_name=\"s\" container=\"\"
            epsilon = Const is=(0.1)
            one = Const is=(1l)
            make = BoostedTreesCreateQuantileStreamResource s epsilon one
            x = Const is=(5.0,1.0,3.0,2.0)
            weight = Const is=(1.0,)
            summary = BoostedTreesMakeQuantileSummaries x weight epsilon
            add = BoostedTreesQuantileStreamResourceAddSummaries s summary
            three = Const is=(3l)
            flush = BoostedTreesQuantileStreamResourceFlush s three
            bounds = BoostedTreesQuantileStreamResourceGetBucketBoundaries s num_features=1
            is_made = IsBoostedTreesQuantileStreamResourceInitialized s",
            &["^make", "^add", "^flush", "^add", "^add"],
            &["bounds", "is_made"],
            &[
                ("bounds", "1.0,3.0,5.0"),
                ("^add", ""),
                ("^flush", ""),
                ("bounds", "1.0,3.0,5.0"),
                ("^flush", ""),
                ("bounds", ""),
            ],
        ),
    ]
}
