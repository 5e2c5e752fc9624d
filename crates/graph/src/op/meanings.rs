//! Other names for computations, of Keras, PyTorch, NumPy and burn, and the ops that compute them.

/// Words in lower case, without underscores, and ops.
pub(super) const MEANINGS: &[(&[&str], &[&str])] = &[
    (&["dense", "linear", "fullyconnected", "gemm", "affine"], &["MatMul", "BiasAdd"]),
    (&["dot", "mm", "product"], &["MatMul"]),
    (&["bmm"], &["BatchMatMulV2"]),
    (
        &["crossentropy", "crossentropyloss", "softmaxcrossentropy"],
        &["SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"],
    ),
    (&["categoricalcrossentropy"], &["SoftmaxCrossEntropyWithLogits"]),
    (&["sparsecategoricalcrossentropy", "nllloss"], &["SparseSoftmaxCrossEntropyWithLogits"]),
    (&["mse", "mseloss", "meansquarederror"], &["SquaredDifference", "Mean"]),
    (&["mae", "l1loss", "meanabsoluteerror"], &["Sub", "Abs", "Mean"]),
    (&["lstm", "lstmcell", "rnn"], &["BlockLSTM", "LSTMBlockCell"]),
    (&["gru", "grucell"], &["GRUBlockCell"]),
    (&["dropout"], &["RandomUniform", "GreaterEqual", "SelectV2"]),
    (&["batchnorm", "batchnorm1d", "batchnorm2d", "batchnormalization"], &["FusedBatchNormV3"]),
    (&["layernorm", "layernormalization", "groupnorm"], &["Mean", "SquaredDifference", "Rsqrt"]),
    (&["embedding", "embeddinglookup", "lookup", "take"], &["GatherV2"]),
    (&["flatten", "view"], &["Reshape"]),
    (&["unsqueeze"], &["ExpandDims"]),
    (&["permute", "swapaxes"], &["Transpose"]),
    (&["conv", "convolution", "convolution2d"], &["Conv2D"]),
    (&["convtranspose2d", "conv2dtranspose", "deconvolution"], &["Conv2DBackpropInput"]),
    (&["depthwiseconv2d"], &["DepthwiseConv2dNative"]),
    (&["maxpool2d", "maxpooling2d", "maxpooling"], &["MaxPool"]),
    (&["avgpool2d", "averagepooling2d", "averagepool", "meanpool"], &["AvgPool"]),
    (&["globalaveragepooling2d"], &["Mean"]),
    (&["upsample", "upsampling2d", "interpolate", "resize"], &["ResizeBilinear", "ResizeNearestNeighbor"]),
    (&["attention", "multiheadattention", "selfattention"], &["BatchMatMulV2", "Softmax"]),
    (&["cat", "concatenate"], &["ConcatV2"]),
    (&["chunk"], &["Split"]),
    (&["clip", "clamp"], &["ClipByValue"]),
    (&["swish", "silu"], &["Sigmoid", "Mul"]),
    (&["gelu"], &["Erf", "Mul"]),
    (&["add2", "plus"], &["AddV2"]),
    (&["subtract", "minus"], &["Sub"]),
    (&["multiply", "times"], &["Mul"]),
    (&["divide"], &["RealDiv"]),
    (&["negative"], &["Neg"]),
    (&["power"], &["Pow"]),
    (&["average", "reducemean"], &["Mean"]),
    (&["reducesum"], &["Sum"]),
    (&["reducemax", "amax"], &["Max"]),
    (&["reducemin", "amin"], &["Min"]),
    (&["normal", "randn", "gaussian"], &["RandomStandardNormal"]),
    (&["rand", "uniform"], &["RandomUniform"]),
    (&["arange"], &["Range"]),
    (&["eye", "identitymatrix"], &["MatrixDiag"]),
    (&["input", "parameter"], &["Placeholder"]),
];

/// Why a function of a Python program cannot be called, and the remedy.
pub const NO_PYTHON: &str = "it calls a function of the program (tf.py_func, Dataset.from_generator), and Python does not run in a \
                             node, except in that which the program itself has started (tf.train.Server under `meshtf tf`): feed \
                             the values to a placeholder, or write them to a TFRecord file and read that";
