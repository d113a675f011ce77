package packaging

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/goiser/goiser/conf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tool is a program that a test asks, if it is there.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(name, " is not installed: ", err)
	}
	return path
}

func TestUnitIsRight(t *testing.T) {
	analyze := tool(t, "systemd-analyze")
	b, err := os.ReadFile("iserd.service")
	require.NoError(t, err)
	require.Contains(t, string(b), "\nExecStart=/usr/sbin/iserd ")
	unit := filepath.Join(t.TempDir(), "iserd.service")
	// What it starts has to be there.
	require.NoError(t, os.WriteFile(unit, bytes.ReplaceAll(b, []byte("=/usr/sbin/iserd "), []byte("=/bin/true ")), 0o600))
	out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Empty(t, string(out), "warnings")
	out, err = exec.Command(analyze, "security", "--offline=yes", "--threshold=25", unit).CombinedOutput()
	assert.NoError(t, err, "exposed more than 2.5 of 10: %s", out)
}

// The configuration that is installed can be started at once, serves this host only, and keeps reservations.
func TestInstalledConfigurationIsHarmless(t *testing.T) {
	c, err := conf.Load("iserd.yaml")
	require.NoError(t, err)
	for _, p := range c.Portals {
		assert.True(t, p.Listen.Addr().IsLoopback())
	}
	assert.False(t, c.Insecure)
	assert.Equal(t, "/var/lib/iserd", c.StateDir)
	for _, b := range c.Backstores {
		assert.Equal(t, "ram", b.Type, "it overwrites nothing")
	}
}

func TestScriptsParse(t *testing.T) {
	for _, name := range []string{"debian/postinst", "debian/prerm", "debian/postrm", "yamlpage.sh", "licenses.sh"} {
		out, err := exec.Command("sh", "-n", name).CombinedOutput()
		assert.NoError(t, err, "%s: %s", name, out)
	}
	if bash, err := exec.LookPath("bash"); err == nil {
		for _, name := range []string{"deb.sh", "try.sh"} {
			out, err := exec.Command(bash, "-n", name).CombinedOutput()
			assert.NoError(t, err, string(out))
		}
	}
}

// The page of the configuration file has no warnings, and no line of the file is lost in it.
func TestConfigurationPage(t *testing.T) {
	page, err := exec.Command("sh", "yamlpage.sh", "../docs/iserd.yaml", "1.0").Output()
	require.NoError(t, err)
	man := tool(t, "man")
	file := filepath.Join(t.TempDir(), "iserd.yaml.5")
	require.NoError(t, os.WriteFile(file, page, 0o600))
	cmd := exec.Command(man, "--warnings", "-E", "UTF-8", "-l", file)
	cmd.Env = append(os.Environ(), "MANWIDTH=200", "LC_ALL=C.UTF-8", "MANROFFOPT=-c", "MANPAGER=cat")
	var warnings bytes.Buffer
	cmd.Stderr = &warnings
	text, err := cmd.Output()
	require.NoError(t, err)
	assert.Empty(t, warnings.String())
	shown := regexp.MustCompile(`.\x08`).ReplaceAllString(string(text), "")
	source, err := os.ReadFile("../docs/iserd.yaml")
	require.NoError(t, err)
	for line := range strings.SplitSeq(string(source), "\n") {
		assert.Contains(t, shown, strings.TrimSpace(line))
	}
}

// What we use of Kubernetes' objects, by the names that its API has for them.
type (
	labels   map[string]string
	metadata struct {
		Name   string `yaml:"name"`
		Labels labels `yaml:"labels"`
	}
	resources struct {
		Requests map[string]string `yaml:"requests"`
		Limits   map[string]string `yaml:"limits"`
	}
	probe struct {
		TCPSocket struct {
			Port string `yaml:"port"`
		} `yaml:"tcpSocket"`
		InitialDelaySeconds int `yaml:"initialDelaySeconds"`
		PeriodSeconds       int `yaml:"periodSeconds"`
	}
	manifest struct {
		APIVersion string            `yaml:"apiVersion"`
		Kind       string            `yaml:"kind"`
		Metadata   metadata          `yaml:"metadata"`
		Data       map[string]string `yaml:"data"` // of a ConfigMap
		Spec       any               `yaml:"spec"`
	}
	service struct {
		Selector labels `yaml:"selector"`
		Ports    []struct {
			Name       string `yaml:"name"`
			Port       int    `yaml:"port"`
			TargetPort string `yaml:"targetPort"`
			Protocol   string `yaml:"protocol"`
		} `yaml:"ports"`
	}
	container struct {
		Name  string   `yaml:"name"`
		Image string   `yaml:"image"`
		Args  []string `yaml:"args"`
		Ports []struct {
			Name          string `yaml:"name"`
			ContainerPort int    `yaml:"containerPort"`
			Protocol      string `yaml:"protocol"`
		} `yaml:"ports"`
		SecurityContext struct {
			AllowPrivilegeEscalation bool                `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool                `yaml:"readOnlyRootFilesystem"`
			Capabilities             map[string][]string `yaml:"capabilities"`
		} `yaml:"securityContext"`
		Resources      resources `yaml:"resources"`
		ReadinessProbe probe     `yaml:"readinessProbe"`
		LivenessProbe  probe     `yaml:"livenessProbe"`
		VolumeMounts   []struct {
			Name      string `yaml:"name"`
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	pod struct {
		AutomountServiceAccountToken  bool `yaml:"automountServiceAccountToken"`
		TerminationGracePeriodSeconds int  `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               struct {
			RunAsNonRoot   bool              `yaml:"runAsNonRoot"`
			RunAsUser      int               `yaml:"runAsUser"`
			RunAsGroup     int               `yaml:"runAsGroup"`
			FSGroup        int               `yaml:"fsGroup"`
			SeccompProfile map[string]string `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		Containers []container `yaml:"containers"`
		Volumes    []struct {
			Name      string            `yaml:"name"`
			ConfigMap map[string]string `yaml:"configMap"`
			Secret    struct {
				SecretName  string `yaml:"secretName"`
				DefaultMode int    `yaml:"defaultMode"`
			} `yaml:"secret"`
		} `yaml:"volumes"`
	}
	statefulSet struct {
		ServiceName string `yaml:"serviceName"`
		Replicas    int    `yaml:"replicas"`
		Selector    struct {
			MatchLabels labels `yaml:"matchLabels"`
		} `yaml:"selector"`
		Template struct {
			Metadata metadata `yaml:"metadata"`
			Spec     pod      `yaml:"spec"`
		} `yaml:"template"`
		VolumeClaimTemplates []struct {
			Metadata metadata `yaml:"metadata"`
			Spec     struct {
				AccessModes []string  `yaml:"accessModes"`
				Resources   resources `yaml:"resources"`
			} `yaml:"spec"`
		} `yaml:"volumeClaimTemplates"`
	}
)

// strictly reads v anew as another type, of which it may have no key that is unknown.
func strictly(t *testing.T, v, to any) {
	t.Helper()
	b, err := yaml.Marshal(v)
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalWithOptions(b, to, yaml.Strict()))
}

// Names that do not exist, and parts that do not fit each other, are found here; a cluster is not there to ask.
func TestKubernetesManifestFitsTogether(t *testing.T) {
	b, err := os.ReadFile("kubernetes.yaml")
	require.NoError(t, err)
	parts := make(map[string]manifest)
	for document := range strings.SplitSeq(string(b), "\n---\n") {
		var m manifest
		require.NoError(t, yaml.UnmarshalWithOptions([]byte(document), &m, yaml.Strict()))
		parts[m.Kind] = m
	}
	require.Len(t, parts, 3)
	var svc service
	var set statefulSet
	strictly(t, parts["Service"].Spec, &svc)
	strictly(t, parts["StatefulSet"].Spec, &set)
	assert.Equal(t, "v1", parts["Service"].APIVersion)
	assert.Equal(t, "apps/v1", parts["StatefulSet"].APIVersion)
	pod := set.Template.Spec
	assert.Equal(t, set.Selector.MatchLabels, set.Template.Metadata.Labels)
	assert.Equal(t, set.Selector.MatchLabels, svc.Selector)
	assert.Equal(t, parts["Service"].Metadata.Name, set.ServiceName)
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	assert.Equal(t, c.Ports[0].Name, svc.Ports[0].TargetPort)
	assert.Equal(t, c.Ports[0].Name, c.ReadinessProbe.TCPSocket.Port)
	volumes := map[string]bool{set.VolumeClaimTemplates[0].Metadata.Name: true}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range c.VolumeMounts {
		assert.True(t, volumes[m.Name], m.Name)
	}
	assert.Equal(t, parts["ConfigMap"].Metadata.Name, pod.Volumes[0].ConfigMap["name"])
	assert.Equal(t, 0o440, pod.Volumes[1].Secret.DefaultMode)

	// The configuration in it is one, but for the secret, which is the cluster's.
	text := parts["ConfigMap"].Data["iserd.yaml"]
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("a secret for tests\n"), 0o600))
	_, err = conf.Parse("iserd.yaml", []byte(strings.Replace(text, "/etc/iserd-chap/secret", secret, 1)))
	require.NoError(t, err)
}

// What the recipe copies is there, and it starts what it has built.
func TestContainerfileNamesWhatThereIs(t *testing.T) {
	b, err := os.ReadFile("Containerfile")
	require.NoError(t, err)
	known := regexp.MustCompile(`^(#|FROM|WORKDIR|COPY|RUN|ARG|USER|EXPOSE|VOLUME|STOPSIGNAL|ENTRYPOINT|CMD|$)`)
	for line := range strings.SplitSeq(string(b), "\n") {
		assert.Regexp(t, known, line)
		if words := strings.Fields(line); len(words) > 2 && words[0] == "COPY" && !strings.HasPrefix(words[1], "--from") {
			for _, source := range words[1 : len(words)-1] {
				if !strings.HasPrefix(source, "--") {
					_, err := os.Stat(filepath.Join("..", source))
					assert.NoError(t, err)
				}
			}
		}
	}
	assert.Contains(t, string(b), "FROM scratch\n")
	assert.Contains(t, string(b), `ENTRYPOINT ["/iserd"]`)
}
